// The kernels for Python's ctypes: what is told of a task, in plain numbers.
#include "means.h"

extern "C" int tile(int dim) { return tile_of(dim); }

// Strides of the target, the source and the result, by batch, head and token; what failed, or nothing.
extern "C" const char *take_means(const void *target, const void *source, void *result, float *totals,
                                  const int64_t (&strides)[3][3], const int64_t (&sizes)[6], float own, float scale,
                                  bool adjoint, bool bfloat16, bool summed) {
  const auto layout = [&](int k) { return Layout{strides[k][0], strides[k][1], strides[k][2]}; };
  const auto [all_heads, heads, tokens, dim, segments, length] = sizes;
  const Task task{target,     source,      result,   totals,        layout(0),   layout(1), layout(2), all_heads,
                  int(heads), int(tokens), int(dim), int(segments), int(length), own,       scale,     adjoint};
  const cudaError_t failed = launch(task, bfloat16, summed, nullptr);
  return failed == cudaSuccess ? nullptr : cudaGetErrorString(failed);
}
