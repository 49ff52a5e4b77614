// Causal attention without its gap as one node of autograd's graph, with no Python on the way there and back.
//
// (A - gamma C) V = A V - gamma C V, where C V is the running mean of the values (propagation, equation 9). The fused
// kernel of torch that computes A V wants its output again for the gradient. That output is not kept: the mean is taken
// from it in place, and put back when the gradient asks for it. So a step has no more in memory than one of plain
// attention.
#include <ATen/ops/_fused_sdp_choice.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention_backward.h>
#include <ATen/ops/_scaled_dot_product_flash_attention.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "means.h"

namespace {

using at::Tensor;
using Scale = std::optional<double>;
using torch::autograd::variable_list;

constexpr int64_t FLASH = 1, CUDNN = 3; // at::SDPBackend
constexpr int64_t PROGRAMS = 1056; // that keep a GPU busy
constexpr int64_t SEGMENTS = 64;   // the most that a head is cut into

Layout layout_of(const Tensor &x) { return {x.stride(0), x.stride(1), x.stride(2)}; }

// Whether the kernels can read and write it: sixteen bytes at a time.
bool fits(const Tensor &x) {
  return x.stride(3) == 1 && x.stride(0) % 8 == 0 && x.stride(1) % 8 == 0 && x.stride(2) % 8 == 0 &&
         reinterpret_cast<uintptr_t>(x.const_data_ptr()) % 16 == 0;
}

Tensor fitting(const Tensor &x) { return fits(x) ? x : x.clone(at::MemoryFormat::Contiguous); }

int64_t tiles_of(const Tensor &x) {
  const int64_t tile = tile_of(int(x.size(3)));
  return (x.size(2) + tile - 1) / tile;
}

// Room for the sums of the segments of a tensor.
Tensor room(const Tensor &x) {
  return at::empty({x.size(0) * x.size(1), std::min(tiles_of(x), SEGMENTS), x.size(3)}, x.options().dtype(at::kFloat));
}

Values values_of(const Tensor &x, const Tensor &totals, bool adjoint) {
  return {x.const_data_ptr(), totals.mutable_data_ptr<float>(), layout_of(x), adjoint};
}

// result = target - scale C source; the result may be the target. Sums of the source's segments are written, unless they
// are known; those of the next values, which have the same shape, if there are any.
void take_means(const Tensor &result, const Tensor &target, const Tensor &source, double scale, const Values &values,
                bool known, const Values &next = {}) {
  if (source.numel() == 0) return;
  const int64_t all_heads = source.size(0) * source.size(1), tokens = source.size(2), tiles = tiles_of(source);
  const int64_t wanted = std::clamp(PROGRAMS / all_heads, int64_t(1), SEGMENTS);
  const int64_t length = (tiles + wanted - 1) / wanted * tile_of(int(source.size(3)));
  const Task task{target.const_data_ptr(),
                  result.mutable_data_ptr(),
                  layout_of(target),
                  layout_of(result),
                  values,
                  next,
                  all_heads,
                  int(source.size(1)),
                  int(tokens),
                  int(source.size(3)),
                  int((tokens + length - 1) / length),
                  int(length),
                  float(scale)};
  const auto failed = launch(task, source.scalar_type() == at::kBFloat16, known, c10::cuda::getCurrentCUDAStream());
  TORCH_CHECK(failed == cudaSuccess, "bulkedge: ", cudaGetErrorString(failed));
}

using Forward = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>;

// Output, normaliser, the two tensors of dropout's state, and sums of the values that put the plain output together again.
Forward attend_forward(const Tensor &query, const Tensor &key, const Tensor &value, int64_t backend, double dropout,
                       Scale scale, double gamma) {
  const c10::cuda::CUDAGuard guard(query.device());
  Tensor output, normaliser, seed, offset;
  if (backend == CUDNN) {
    auto found = at::_scaled_dot_product_cudnn_attention(query, key, value, std::nullopt, true, dropout, true, false, scale);
    output = std::get<0>(found), normaliser = std::get<1>(found), seed = std::get<6>(found), offset = std::get<7>(found);
  } else {
    auto found = at::_scaled_dot_product_flash_attention(query, key, value, dropout, true, false, scale);
    output = std::get<0>(found), normaliser = std::get<1>(found), seed = std::get<6>(found), offset = std::get<7>(found);
  }
  output = fitting(output);
  const Tensor source = fitting(value), totals = room(source);
  take_means(output, output, source, gamma, values_of(source, totals, false), false);
  return {output, normaliser, seed, offset, totals};
}

using Backward = std::tuple<Tensor, Tensor, Tensor>;

Backward attend_backward(const Tensor &gradient, const Tensor &query, const Tensor &key, const Tensor &value,
                         const Tensor &output, const Tensor &normaliser, const Tensor &seed, const Tensor &offset,
                         const Tensor &totals, int64_t backend, double dropout, Scale scale, double gamma) {
  const c10::cuda::CUDAGuard guard(query.device());
  const Tensor plain = at::empty_like(output), source = fitting(value), sent = fitting(gradient), more = room(sent);
  const Values sent_values = values_of(sent, more, true);
  take_means(plain, output, source, -gamma, values_of(source, totals, false), true, sent_values);
  const auto queries = query.sym_size(2), keys = key.sym_size(2);
  auto [of_query, of_key, of_value] =
      backend == CUDNN
          ? at::_scaled_dot_product_cudnn_attention_backward_symint(gradient, query, key, value, plain, normaliser, seed,
                                                                    offset, Tensor(), Tensor(), Tensor(), queries, keys,
                                                                    dropout, true, scale)
          : at::_scaled_dot_product_flash_attention_backward_symint(gradient, query, key, value, plain, normaliser,
                                                                    Tensor(), Tensor(), queries, keys, dropout, true,
                                                                    seed, offset, scale);
  of_value = fitting(of_value);
  take_means(of_value, of_value, sent, gamma, sent_values, true);
  return {of_query, of_key, of_value};
}

template <class Signature> auto operator_of(const char *name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

class Attend : public torch::autograd::Function<Attend> {
public:
  static Tensor forward(torch::autograd::AutogradContext *context, const Tensor &query, const Tensor &key,
                        const Tensor &value, int64_t backend, double dropout, Scale scale, double gamma) {
    static const auto there = operator_of<decltype(attend_forward)>("bulkedge_native::attend_forward");
    at::AutoDispatchBelowADInplaceOrView below;
    auto [output, normaliser, seed, offset, totals] = there.call(query, key, value, backend, dropout, scale, gamma);
    context->save_for_backward({query, key, value, output, normaliser, seed, offset, totals});
    context->saved_data["backend"] = backend;
    context->saved_data["dropout"] = dropout;
    context->saved_data["scale"] = scale;
    context->saved_data["gamma"] = gamma;
    return output;
  }

  static variable_list backward(torch::autograd::AutogradContext *context, variable_list gradients) {
    static const auto back = operator_of<decltype(attend_backward)>("bulkedge_native::attend_backward");
    const auto saved = context->get_saved_variables();
    std::optional<at::AutoDispatchBelowADInplaceOrView> below;
    if (!at::GradMode::is_enabled()) below.emplace(); // otherwise it says that there is no second derivative
    auto [query, key, value] =
        back.call(gradients[0], saved[0], saved[1], saved[2], saved[3], saved[4], saved[5], saved[6], saved[7],
                  context->saved_data["backend"].toInt(), context->saved_data["dropout"].toDouble(),
                  context->saved_data["scale"].toOptional<double>(), context->saved_data["gamma"].toDouble());
    return {query, key, value, Tensor(), Tensor(), Tensor(), Tensor()};
  }
};

// By the kernel that torch would choose itself, unless it was chosen; that kernel is not for all inputs, and the others
// get an operator that is. Tensors that only have a shape, as when torch compiles, cannot be chosen by.
Tensor attend(const Tensor &query, const Tensor &key, const Tensor &value, double dropout, Scale scale, double gamma,
              std::optional<int64_t> chosen) {
  const int64_t backend =
      chosen ? *chosen : at::_fused_sdp_choice(query, key, value, std::nullopt, dropout, true, scale, false);
  const bool half = value.scalar_type() == at::kBFloat16 || value.scalar_type() == at::kHalf;
  const int64_t dim = value.sym_size(3).guard_int(__FILE__, __LINE__);
  if ((backend == FLASH || backend == CUDNN) && half && dim % 8 == 0 && dim <= 256 && query.sym_sizes() == value.sym_sizes() &&
      key.sym_sizes() == value.sym_sizes())
    return Attend::apply(query, key, value, backend, dropout, scale, gamma);
  using Less = Tensor(const std::optional<Tensor> &, const Tensor &, double, double, double, bool, int64_t);
  static const auto less = operator_of<Less>("bulkedge::less_running_mean");
  const Tensor plain = at::scaled_dot_product_attention(query, key, value, std::nullopt, dropout, true, scale, false);
  return less.call(plain, value, 1.0, 0.0, gamma, false, query.sym_size(1).guard_int(__FILE__, __LINE__));
}

} // namespace

TORCH_LIBRARY(bulkedge_native, library) {
  library.def("attend(Tensor query, Tensor key, Tensor value, float dropout, float? scale, float gamma, "
              "int? backend) -> Tensor");
  library.def("attend_forward(Tensor query, Tensor key, Tensor value, int backend, float dropout, float? scale, "
              "float gamma) -> (Tensor, Tensor, Tensor, Tensor, Tensor)");
  library.def("attend_backward(Tensor gradient, Tensor query, Tensor key, Tensor value, Tensor output, "
              "Tensor normaliser, Tensor seed, Tensor offset, Tensor totals, int backend, float dropout, float? scale, "
              "float gamma) -> (Tensor, Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(bulkedge_native, CompositeImplicitAutograd, library) { library.impl("attend", attend); }

TORCH_LIBRARY_IMPL(bulkedge_native, CUDA, library) {
  library.impl("attend_forward", attend_forward);
  library.impl("attend_backward", attend_backward);
}

TORCH_LIBRARY_IMPL(bulkedge_native, Autograd, library) {
  library.impl("attend_backward", torch::autograd::autogradNotImplementedFallback());
}
