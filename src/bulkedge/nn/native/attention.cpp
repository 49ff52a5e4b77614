// Causal attention without its gap as one node of autograd's graph, with no Python on the way there and back.
//
// (alpha I + A - gamma C) V = A V + alpha V - gamma C V, where C V is the running mean of the values (propagation,
// equation 9). The fused kernel of torch that computes A V wants its output again for the gradient. Without the gap
// (alpha = 0) that output is not kept: the mean is taken from it in place, and put back when the gradient asks for it. So
// a step has no more in memory than one of plain attention.
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

struct Shape {
  double alpha, gamma;
  Shape operator-() const { return {-alpha, -gamma}; }
  // Put together again, the plain output is as accurate as what was made of it. Values are larger than their averages:
  // where they are added, or much is taken away, digits would be lost.
  bool keeps_output() const { return alpha != 0 || gamma < 0 || gamma > 1; }
};

// result = target + alpha source - gamma C source; the result may be the target. Sums of segments are returned, and may
// be given: a buffer whose size does not depend on how heads are cut.
Tensor take_means(const Tensor &result, const Tensor &target, const Tensor &given, Shape shape, bool adjoint,
                  const Tensor &known = Tensor()) {
  const Tensor source = fitting(given);
  const int64_t all_heads = source.size(0) * source.size(1), tokens = source.size(2), dim = source.size(3);
  const int64_t tile = tile_of(int(dim)), tiles = (tokens + tile - 1) / tile;
  const int64_t wanted = std::clamp(PROGRAMS / std::max<int64_t>(all_heads, 1), int64_t(1), SEGMENTS);
  const int64_t length = (tiles + wanted - 1) / wanted * tile, segments = length ? (tokens + length - 1) / length : 0;
  const bool summed = known.defined();
  const Tensor totals =
      summed ? known : at::empty({std::max(PROGRAMS, all_heads) * dim}, source.options().dtype(at::kFloat));
  if (source.numel() == 0) return totals;
  const Task task{target.const_data_ptr(),
                  source.const_data_ptr(),
                  result.mutable_data_ptr(),
                  totals.mutable_data_ptr<float>(),
                  layout_of(target),
                  layout_of(source),
                  layout_of(result),
                  all_heads,
                  int(source.size(1)),
                  int(tokens),
                  int(dim),
                  int(segments),
                  int(length),
                  float(shape.alpha),
                  float(shape.gamma),
                  adjoint};
  const auto failed = launch(task, source.scalar_type() == at::kBFloat16, summed, c10::cuda::getCurrentCUDAStream());
  TORCH_CHECK(failed == cudaSuccess, "bulkedge: ", cudaGetErrorString(failed));
  return totals;
}

using Forward = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>;

// Output, normaliser, the two tensors of dropout's state, and the plain output or the sums that put it together again.
Forward attend_forward(const Tensor &query, const Tensor &key, const Tensor &value, int64_t backend, double dropout,
                       Scale scale, double alpha, double gamma) {
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
  const Shape shape{alpha, gamma};
  const Tensor result = shape.keeps_output() ? at::empty_like(output) : output;
  const Tensor sums = take_means(result, output, value, shape, false);
  return {result, normaliser, seed, offset, shape.keeps_output() ? output : sums};
}

// A gradient in the layout of the output that it is for. cuDNN's plans for the way back are kept by torch (2.11) under a
// name without that layout: a gradient of another one is then read as if it were of the first that came.
Tensor laid_out(const Tensor &gradient, const Tensor &output) {
  if (gradient.strides() == output.strides() && fits(gradient)) return gradient;
  return at::empty_like(output).copy_(gradient);
}

using Backward = std::tuple<Tensor, Tensor, Tensor>;

Backward attend_backward(const Tensor &sent, const Tensor &query, const Tensor &key, const Tensor &value,
                         const Tensor &output, const Tensor &normaliser, const Tensor &seed, const Tensor &offset,
                         const Tensor &kept, int64_t backend, double dropout, Scale scale, double alpha, double gamma) {
  const c10::cuda::CUDAGuard guard(query.device());
  const Tensor gradient = laid_out(sent, output);
  const Shape shape{alpha, gamma};
  Tensor plain = kept;
  if (!shape.keeps_output()) {
    plain = at::empty_like(output);
    take_means(plain, output, value, -shape, false, kept);
  }
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
  take_means(of_value, of_value, gradient, shape, true);
  return {of_query, of_key, of_value};
}

template <class Signature> auto operator_of(const char *name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

class Attend : public torch::autograd::Function<Attend> {
public:
  static Tensor forward(torch::autograd::AutogradContext *context, const Tensor &query, const Tensor &key,
                        const Tensor &value, int64_t backend, double dropout, Scale scale, double alpha, double gamma) {
    static const auto there = operator_of<decltype(attend_forward)>("bulkedge_native::attend_forward");
    at::AutoDispatchBelowADInplaceOrView below;
    auto [output, normaliser, seed, offset, kept] = there.call(query, key, value, backend, dropout, scale, alpha, gamma);
    context->save_for_backward({query, key, value, output, normaliser, seed, offset, kept});
    context->saved_data["backend"] = backend;
    context->saved_data["dropout"] = dropout;
    context->saved_data["scale"] = scale;
    context->saved_data["alpha"] = alpha;
    context->saved_data["gamma"] = gamma;
    return output;
  }

  static variable_list backward(torch::autograd::AutogradContext *context, variable_list gradients) {
    static const auto back = operator_of<decltype(attend_backward)>("bulkedge_native::attend_backward");
    std::optional<at::AutoDispatchBelowADInplaceOrView> below;
    if (!at::GradMode::is_enabled()) below.emplace(); // otherwise it says that there is no second derivative
    const auto saved = context->get_saved_variables();
    auto &data = context->saved_data;
    auto [query, key, value] =
        back.call(gradients[0], saved[0], saved[1], saved[2], saved[3], saved[4], saved[5], saved[6], saved[7],
                  data["backend"].toInt(), data["dropout"].toDouble(), data["scale"].toOptional<double>(),
                  data["alpha"].toDouble(), data["gamma"].toDouble());
    return {query, key, value, Tensor(), Tensor(), Tensor(), Tensor(), Tensor()};
  }
};

// Whether the node is for it: kernels of torch that are not fused have no such way back, and others no such sizes.
bool takes(const Tensor &query, const Tensor &key, const Tensor &value, int64_t backend) {
  const auto type = value.scalar_type();
  const bool half = (type == at::kBFloat16 || type == at::kHalf) && query.scalar_type() == type && key.scalar_type() == type;
  const int64_t dim = value.sym_size(3).guard_int(__FILE__, __LINE__);
  const bool side_by_side = query.sym_stride(3) == 1 && key.sym_stride(3) == 1 && value.sym_stride(3) == 1;
  return (backend == FLASH || backend == CUDNN) && half && dim > 0 && dim % 8 == 0 && dim <= 256 && side_by_side &&
         query.sym_sizes() == value.sym_sizes() && key.sym_sizes() == value.sym_sizes();
}

// By the kernel that torch would choose itself, unless it was chosen: tensors that only have a shape, as when torch compiles,
// cannot be chosen by. The last argument, which library this is, is for compilers: they keep on disk what they make of this.
Tensor attend(const Tensor &query, const Tensor &key, const Tensor &value, double dropout, Scale scale, double alpha,
              double gamma, std::optional<int64_t> chosen, c10::string_view build) {
  const int64_t backend =
      chosen ? *chosen : at::_fused_sdp_choice(query, key, value, std::nullopt, dropout, true, scale, false);
  if (takes(query, key, value, backend))
    return Attend::apply(query, key, value, backend, dropout, scale, alpha, gamma);
  using Less = Tensor(const std::optional<Tensor> &, const Tensor &, double, double, double, bool, int64_t,
                      c10::string_view);
  static const auto less = operator_of<Less>("bulkedge::less_running_mean");
  const Tensor plain = at::scaled_dot_product_attention(query, key, value, std::nullopt, dropout, true, scale, false);
  const int64_t heads = query.sym_size(1).guard_int(__FILE__, __LINE__);
  return less.call(plain, value, 1.0, alpha, gamma, false, heads, build);
}

} // namespace

TORCH_LIBRARY(bulkedge_native, library) {
  library.def("attend(Tensor query, Tensor key, Tensor value, float dropout, float? scale, float alpha, float gamma, "
              "int? backend, str build) -> Tensor");
  library.def("attend_forward(Tensor query, Tensor key, Tensor value, int backend, float dropout, float? scale, "
              "float alpha, float gamma) -> (Tensor, Tensor, Tensor, Tensor, Tensor)");
  library.def("attend_backward(Tensor gradient, Tensor query, Tensor key, Tensor value, Tensor output, "
              "Tensor normaliser, Tensor seed, Tensor offset, Tensor kept, int backend, float dropout, float? scale, "
              "float alpha, float gamma) -> (Tensor, Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(bulkedge_native, CompositeImplicitAutograd, library) {
  library.impl("attend", attend);
}

TORCH_LIBRARY_IMPL(bulkedge_native, CUDA, library) {
  library.impl("attend_forward", attend_forward);
  library.impl("attend_backward", attend_backward);
}

TORCH_LIBRARY_IMPL(bulkedge_native, Autograd, library) {
  library.impl("attend_backward", torch::autograd::autogradNotImplementedFallback());
}
