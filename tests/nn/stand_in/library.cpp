// The node of attention.cpp on a processor: the same source, linked with its kernels as they are compiled there (device.h),
// and products of matrices for flash attention's. So what it does in autograd's graph and in compiled code is tested
// without a GPU.
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

TORCH_LIBRARY_IMPL(aten, CPU, library) {
  library.impl("_scaled_dot_product_flash_attention", flash);
  library.impl("_scaled_dot_product_flash_attention_backward", flash_backward);
}
