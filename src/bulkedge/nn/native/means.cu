// Running means of half-precision values, taken from what lies in memory.
//
// Tokens are walked in the order of positions: first to last, or for the adjoint last to first. A head is cut into
// segments of whole tiles, one block of threads for each. The first kernel sums the segments; in the second every block
// adds up the sums before its own and walks through its segment tile by tile. (For 16,384 tokens of width 768 that takes 29
// us on an H200. One pass was not faster: 36 us where blocks wait for each other's sums, 32 to 46 where those of a cluster
// tell each other, 20 to 57 where a block walks through all tokens of 32 columns.)
//
// A thread has eight columns of TOKENS neighbouring positions in its registers; a row of threads (a lane) passes its sum
// on to the next lanes through shared memory. Sums are in single precision.
#include "means.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace {

constexpr int TOKENS = 4;    // positions of a lane in a tile
constexpr int COLUMNS = 8;   // of a thread: sixteen bytes
constexpr int THREADS = 256; // of a block, at most

// Two numbers of half precision in a word, and a pair of floats.
template <class Pair> __device__ inline float2 wide(unsigned word);
template <> __device__ inline float2 wide<__nv_bfloat162>(unsigned word) {
  return make_float2(__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u));
}
template <> __device__ inline float2 wide<__half2>(unsigned word) {
  return __half22float2(*reinterpret_cast<const __half2 *>(&word));
}
template <class Pair> __device__ inline unsigned narrow(float2 pair);
template <> __device__ inline unsigned narrow<__nv_bfloat162>(float2 pair) {
  const __nv_bfloat162 found = __float22bfloat162_rn(pair);
  return *reinterpret_cast<const unsigned *>(&found);
}
template <> __device__ inline unsigned narrow<__half2>(float2 pair) {
  const __half2 found = __float22half2_rn(pair);
  return *reinterpret_cast<const unsigned *>(&found);
}

constexpr int WORDS = COLUMNS / 2;

struct alignas(16) Eight {
  unsigned at[WORDS];
};

__device__ inline Eight load(const void *base, int64_t where) {
  return *reinterpret_cast<const Eight *>(static_cast<const uint16_t *>(base) + where);
}

template <class Pair> __device__ inline void add(float (&sums)[COLUMNS], float share, const Eight &values) {
#pragma unroll
  for (int w = 0; w < WORDS; ++w) {
    const float2 pair = wide<Pair>(values.at[w]);
    sums[2 * w] += share * pair.x;
    sums[2 * w + 1] += share * pair.y;
  }
}

template <class Pair>
__device__ inline Eight combined(const Eight &targets, float own, const Eight &values, float factor,
                                 const float (&sums)[COLUMNS]) {
  Eight found;
#pragma unroll
  for (int w = 0; w < WORDS; ++w) {
    const float2 pair = wide<Pair>(targets.at[w]), more = wide<Pair>(values.at[w]);
    found.at[w] = narrow<Pair>(make_float2(pair.x + own * more.x - factor * sums[2 * w],
                                           pair.y + own * more.y - factor * sums[2 * w + 1]));
  }
  return found;
}

struct Place {
  int64_t program, head;
  int segment, lane, column, own;
  __device__ Place(const Task &task, int64_t program) : program(program) {
    head = program / task.segments;
    segment = int(program % task.segments);
    lane = threadIdx.y;
    column = threadIdx.x * COLUMNS;
    own = threadIdx.y * blockDim.x + threadIdx.x;
  }
};

__device__ inline int64_t start(const Layout &layout, const Task &task, const Place &place) {
  return place.head / task.heads * layout.by_batch + place.head % task.heads * layout.by_head + place.column;
}

__device__ inline int token(const Task &task, int position) {
  return task.adjoint ? task.tokens - 1 - position : position;
}

// What a token weighs in a sum.
__device__ inline float weight(const Task &task, int at) { return task.adjoint ? 1.0f / (at + 1) : 1.0f; }

// Add up what lanes have, over lanes, for each column; the result is in the first row of `shared`.
__device__ inline void add_lanes(float *shared, const float (&sums)[COLUMNS], const Task &task, const Place &place) {
  for (int c = 0; c < COLUMNS; ++c) shared[place.lane * task.dim + place.column + c] = sums[c];
  __syncthreads();
  float total = 0;
  if (place.own < task.dim)
    for (int lane = 0; lane < int(blockDim.y); ++lane) total += shared[lane * task.dim + place.own];
  if (place.own < task.dim) shared[place.own] = total; // nobody else reads that column
  __syncthreads();
}

// The sums of the segments before, in the first row of `shared`.
__device__ inline void sums_before(float *shared, const Task &task, const Place &place) {
  const int64_t first = place.head * task.segments;
  float sums[COLUMNS] = {};
  for (int segment = place.lane; segment < place.segment; segment += blockDim.y) {
    const float *total = task.totals + (first + segment) * task.dim + place.column;
    for (int c = 0; c < COLUMNS; ++c) sums[c] += total[c];
  }
  add_lanes(shared, sums, task, place);
}

template <class Pair> __global__ void __launch_bounds__(THREADS) sum_segments(Task task) {
  __shared__ float shared[THREADS * COLUMNS];
  const Place place(task, blockIdx.x);
  if (place.segment + 1 == task.segments) return; // nothing comes after it
  const int64_t base = start(task.source_layout, task, place);
  const int first = place.segment * task.length, last = min(first + task.length, task.tokens);
  float sums[COLUMNS] = {};
#pragma unroll 4
  for (int position = first + place.lane; position < last; position += blockDim.y) {
    const int at = token(task, position);
    add<Pair>(sums, weight(task, at), load(task.source, base + at * task.source_layout.by_token));
  }
  add_lanes(shared, sums, task, place);
  if (place.own < task.dim) task.totals[place.program * task.dim + place.own] = shared[place.own];
}

template <class Pair> __global__ void __launch_bounds__(THREADS, 3) take_means(Task task) {
  __shared__ __align__(16) float lanes[THREADS * COLUMNS], before[THREADS * COLUMNS];
  const Place place(task, int64_t(gridDim.x) - 1 - blockIdx.x); // last ones first: the cache still holds them
  const int64_t source = start(task.source_layout, task, place), target = start(task.target_layout, task, place),
                result = start(task.result_layout, task, place);
  const int first = place.segment * task.length, last = min(first + task.length, task.tokens);
  for (int tile = first; tile < last; tile += blockDim.y * TOKENS) {
    const int begin = tile + place.lane * TOKENS;
    Eight values[TOKENS], targets[TOKENS];
#pragma unroll
    for (int i = 0; i < TOKENS; ++i) {
      if (begin + i < last) {
        const int64_t at = token(task, begin + i);
        values[i] = load(task.source, source + at * task.source_layout.by_token);
        targets[i] = load(task.target, target + at * task.target_layout.by_token);
      }
    }
    if (tile == first) sums_before(before, task, place);
    float sums[COLUMNS] = {};
#pragma unroll
    for (int i = 0; i < TOKENS; ++i) {
      if (begin + i < last) add<Pair>(sums, weight(task, token(task, begin + i)), values[i]);
    }
    float4 *mine = reinterpret_cast<float4 *>(lanes + place.lane * task.dim + place.column);
    mine[0] = make_float4(sums[0], sums[1], sums[2], sums[3]);
    mine[1] = make_float4(sums[4], sums[5], sums[6], sums[7]);
    __syncthreads();
    if (place.own < task.dim) {
      float running = before[place.own];
#pragma unroll 8
      for (int lane = 0; lane < int(blockDim.y); ++lane) {
        const float more = lanes[lane * task.dim + place.own];
        lanes[lane * task.dim + place.own] = running;
        running += more;
      }
      before[place.own] = running; // the next tile goes on from there
    }
    __syncthreads();
    const float4 low = mine[0], high = mine[1];
    float running[COLUMNS] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
    for (int i = 0; i < TOKENS; ++i) {
      if (begin + i < last) {
        const int at = token(task, begin + i);
        add<Pair>(running, weight(task, at), values[i]);
        const float factor = task.adjoint ? task.scale : task.scale / (at + 1);
        const Eight found = combined<Pair>(targets[i], task.own, values[i], factor, running);
        void *where = static_cast<uint16_t *>(task.result) + result + at * task.result_layout.by_token;
        *static_cast<Eight *>(where) = found;
      }
    }
  }
}

template <class Pair> cudaError_t launch_as(const Task &task, bool summed, cudaStream_t stream) {
  const int groups = task.dim / COLUMNS;
  const dim3 threads(groups, THREADS / groups);
  const unsigned blocks = unsigned(task.all_heads * task.segments);
  if (!summed && task.segments > 1) sum_segments<Pair><<<blocks, threads, 0, stream>>>(task);
  take_means<Pair><<<blocks, threads, 0, stream>>>(task);
  return cudaGetLastError();
}

} // namespace

// Without columns there is nothing to do, and any number will do.
int tile_of(int dim) { return dim ? THREADS / (dim / COLUMNS) * TOKENS : TOKENS; }

cudaError_t launch(const Task &task, bool bfloat16, bool summed, cudaStream_t stream) {
  return (bfloat16 ? launch_as<__nv_bfloat162> : launch_as<__half2>)(task, summed, stream);
}
