/* Words of the ledger, shared by the C code and tracer/format/ledger.py, which writes this file. */
#ifndef NULLGPU_LEDGER_H
#define NULLGPU_LEDGER_H
#define NG_NO_ORACLE "cuDNN plan without an oracle's answer, workspace: 0"
#define NG_OTHER_CUDNN "convolution workspaces of another cuDNN version"
#define NG_OTHER_CONV3D "16-bit 3-D convolutions, which the stack's torch leaves to cuDNN"
#define NG_CUBLASLT_WORKSPACE "cuBLASLt's workspace inside a cuDNN plan: 0"
#define NG_WITHHELD_ENGINES "cuDNN engines left out for want of a device or of NVRTC"
#define NG_CHANNELS_LAST_NORM "cuDNN batch normalisation (channels last) workspace: 0"
#endif
