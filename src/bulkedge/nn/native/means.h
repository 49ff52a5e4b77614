// A running mean to take from something, and a source to add to it: what the kernels are told. The last stride of every tensor is one.
#pragma once

#include <cstdint>
#include <cuda_runtime_api.h>

struct Layout {
  int64_t by_batch, by_head, by_token;
};

struct Task {
  const void *target, *source; // result = target + own source - scale C source, C transposed for the adjoint
  void *result;                // may be the target
  float *totals;               // (all heads, segments, dim): sums of segments
  Layout target_layout, source_layout, result_layout;
  int64_t all_heads; // batch times heads
  int heads, tokens, dim, segments, length;
  float own, scale;
  bool adjoint;
};

// Tokens of a tile.
int tile_of(int dim);

// Where the sums of segments are known already, `summed`.
cudaError_t launch(const Task &task, bool bfloat16, bool summed, cudaStream_t stream);
