/* The CUDA runtime headers of the pip wheels include crt/host_defines.h, which only the compiler's wheel carries. A plain
 * C compiler needs no more of it than these words, and all of them mean nothing to it. Written from the documented
 * meaning of each word. */
#ifndef NULLGPU_HOST_DEFINES_H
#define NULLGPU_HOST_DEFINES_H

#define CUDARTAPI
#define __host__
#define __device__
#define __global__
#define __shared__
#define __constant__
#define __managed__
#define __device_builtin__
#define __device_builtin_texture_type__
#define __device_builtin_surface_type__
#define __cudart_builtin__
#define __forceinline__ __inline__ __attribute__((always_inline))
#define __no_return__ __attribute__((noreturn))
#define __noinline__ __attribute__((noinline))
#define __align__(n) __attribute__((aligned(n)))
#define __builtin_align__(n) __align__(n)
#define __specialization_static
#define __CUDA_ARCH_HAS_FEATURE__(feature) 0
#define __annotate__(a) __attribute__((a))
#define __location__(a) __annotate__(a)
#define __grid_constant__

#endif
