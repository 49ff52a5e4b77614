// The node of attention.cpp on a processor: the same source, with loops for its kernels and products of matrices for
// flash attention's. So what it does in autograd's graph and in compiled code is tested without a GPU.
//
// The stand-in for the way back refuses gradients in another layout than the output's: cuDNN's plans, which torch keeps
// under a name without that layout, read them wrongly and say nothing.
#include <ATen/ATen.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#define CUDA CPU // for which operators are registered
#include "attention.cpp"
#undef CUDA

namespace {

template <class Number>
Number *place(const void *base, const Layout &layout, const Task &task, int64_t head, int64_t token, int column) {
  const int64_t start = head / task.heads * layout.by_batch + head % task.heads * layout.by_head;
  return static_cast<Number *>(const_cast<void *>(base)) + start + token * layout.by_token + column;
}

// The running sum of a column over a segment, from a given number on; `each` is told every token and its sum.
template <class Number, class Each>
float walk(const Task &task, int64_t head, int column, int segment, float sum, Each each) {
  const int last = std::min((segment + 1) * task.length, task.tokens);
  for (int position = segment * task.length; position < last; ++position) {
    const int token = task.adjoint ? task.tokens - 1 - position : position;
    const float value = *place<Number>(task.source, task.source_layout, task, head, token, column);
    sum += task.adjoint ? value / (token + 1) : value;
    each(token, sum);
  }
  return sum;
}

template <class Number> void take_means(const Task &task, bool summed) {
  for (int64_t head = 0; head < task.all_heads; ++head) {
    for (int column = 0; column < task.dim; ++column) {
      float before = 0;
      for (int segment = 0; segment < task.segments; ++segment) {
        walk<Number>(task, head, column, segment, before, [&](int token, float sum) {
          const float factor = task.adjoint ? task.scale : task.scale / (token + 1);
          const float target = *place<Number>(task.target, task.target_layout, task, head, token, column);
          const float own = *place<Number>(task.source, task.source_layout, task, head, token, column);
          *place<Number>(task.result, task.result_layout, task, head, token, column) =
              target + task.own * own - factor * sum;
        });
        if (segment + 1 == task.segments) break; // nobody needs its sum
        float &total = task.totals[(head * task.segments + segment) * task.dim + column];
        if (!summed) total = walk<Number>(task, head, column, segment, 0, [](int, float) {});
        before += total;
      }
    }
  }
}

Tensor scores(const Tensor &query, const Tensor &key, Scale scale) {
  const Tensor unseen = at::ones({query.size(2), key.size(2)}, query.options().dtype(at::kBool)).triu(1);
  const double factor = scale.value_or(1 / std::sqrt(double(query.size(3))));
  return (factor * query.to(at::kFloat).matmul(key.to(at::kFloat).mT())).masked_fill(unseen, -INFINITY);
}

using Found = std::tuple<Tensor, Tensor, Tensor, Tensor, c10::SymInt, c10::SymInt, Tensor, Tensor, Tensor>;

Found flash(const Tensor &query, const Tensor &key, const Tensor &value, double, bool, bool, Scale scale) {
  const Tensor found = scores(query, key, scale);
  const Tensor output = at::empty_like(query).copy_(found.softmax(-1).matmul(value.to(at::kFloat)));
  const auto state = query.options().dtype(at::kUInt64);
  return {output, found.logsumexp(-1), {}, {}, query.size(2), key.size(2), at::empty({2}, state), at::empty({}, state), {}};
}

Backward flash_backward(const Tensor &sent, const Tensor &query, const Tensor &key, const Tensor &value,
                        const Tensor &output, const Tensor &normaliser, const Tensor &, const Tensor &, c10::SymInt,
                        c10::SymInt, double, bool, const Tensor &, const Tensor &, Scale scale) {
  TORCH_CHECK(sent.strides() == output.strides(), "the gradient has strides ", sent.strides());
  const double factor = scale.value_or(1 / std::sqrt(double(query.size(3))));
  const Tensor gradient = sent.to(at::kFloat), weights = (scores(query, key, scale) - normaliser.unsqueeze(-1)).exp();
  const Tensor mean = (gradient * output.to(at::kFloat)).sum(-1, true);
  const Tensor of_scores = factor * weights * (gradient.matmul(value.to(at::kFloat).mT()) - mean);
  return {at::empty_like(query).copy_(of_scores.matmul(key.to(at::kFloat))),
          at::empty_like(key).copy_(of_scores.mT().matmul(query.to(at::kFloat))),
          at::empty_like(value).copy_(weights.mT().matmul(gradient))};
}

} // namespace

int tile_of(int dim) { return 256 / (dim / 8) * 4; }

cudaError_t launch(const Task &task, bool bfloat16, bool summed, cudaStream_t) {
  (bfloat16 ? take_means<at::BFloat16> : take_means<at::Half>)(task, summed);
  return cudaSuccess;
}

TORCH_LIBRARY_IMPL(aten, CPU, library) {
  library.impl("_scaled_dot_product_flash_attention", flash);
  library.impl("_scaled_dot_product_flash_attention_backward", flash_backward);
}
