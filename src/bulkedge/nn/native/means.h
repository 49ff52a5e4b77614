// A running mean to take from something: what the kernels are told. The last stride of every tensor is one.
#pragma once

#include <cstdint>
#include <cuda_runtime_api.h>

struct Layout {
  int64_t by_batch, by_head, by_token;
};

struct Values {
  const void *data;
  float *totals; // (all heads, segments, dim): sums of segments
  Layout layout;
  bool adjoint; // of C: tokens are walked from the last to the first, each by its weight
};

struct Task {
  const void *target; // result = target - scale C source, C transposed for the adjoint
  void *result;       // may be the target
  Layout target_layout, result_layout;
  Values source, next; // the segments of the next values are summed on the way, if there are any
  int64_t all_heads;   // batch times heads
  int heads, tokens, dim, segments, length;
  float scale;
};

// Tokens of a tile.
int tile_of(int dim);

// Where the sums of the source's segments are known already, `summed`.
cudaError_t launch(const Task &task, bool bfloat16, bool summed, cudaStream_t stream);
