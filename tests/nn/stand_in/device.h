// What nvcc knows without being told, for a processor: kernels compile as they are, but for two things that are no C++
// and that tests/kernels_on_cpu.py rewrites, launches and declarations of shared memory.
//
// Blocks run one after the other, in a random order. The threads of a block take turns: each runs until it waits or ends,
// then the next does, in an order that is drawn again after every barrier. So one that is missing is noticed: some thread
// reads before another has written.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>

#include "cuda_runtime_api.h"

#define __global__
#define __device__
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __syncthreads() device::wait(__LINE__)

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
struct float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline float __uint_as_float(unsigned bits) {
  float found;
  std::memcpy(&found, &bits, sizeof found);
  return found;
}
using std::max;
using std::min;

extern dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace device {

constexpr std::size_t BAND = 64; // elements behind an array of shared memory that nobody may write

void run(dim3 blocks, dim3 threads, const std::function<void()> &kernel);
void wait(int line);
void share(void *array, std::size_t size, std::size_t band);

// Arrays that the threads of a block have in common: every block finds them full of NaN.
template <class... Arrays> void shares(Arrays &...arrays) { (share(arrays, sizeof arrays, BAND * sizeof *arrays), ...); }

} // namespace device
