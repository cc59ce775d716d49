/* Made by benchmarks/simulator/allocator_header.py from simulator/rules.py, which names the sources. */
#define MIN_BLOCK 512ll /* every block is a multiple of it */
#define SMALL 1048576ll /* the largest request that the small pool serves */
#define SMALL_SEGMENT 2097152ll /* segment, and page of expandable segments, of small pools */
#define MIN_LARGE 10485760ll /* from this size on, a segment is as large as its first block */
#define ROUND_LARGE 2097152ll /* and a multiple of this */
#define PAGE 2097152ll /* the driver's */
#define CHUNK 33554432ll /* chunk of addresses on Linux */
#define BASE 70368744177664ll /* first address */
#define SPAN 1152921504606846976ll /* size of the address range */
#define N_INTERVALS 16
enum request { MALLOC = 0, FREE = 1, RETIRE = 2, COMPLETE = 3, EMPTY = 4, RECORD = 5, BEGIN_POOL = 6, END_POOL = 7, RELEASE_POOL = 8, TRY = 9, TAKE = 10 };
enum action { SEGMENT_ALLOC = 3, SEGMENT_FREE = 4, SEGMENT_MAP = 5, SEGMENT_UNMAP = 6, OOM = 7 };
enum policy { LINUX = 0, WINDOWS = 1 };
