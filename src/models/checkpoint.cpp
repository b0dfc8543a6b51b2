#include "models/checkpoint.h"

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/Generator.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <mutex>
#include <utility>

namespace heed::detail {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

/// The random numbers of a device from here on.
class RandomState {
 public:
  explicit RandomState(at::Device device)
      : generator_(at::globalContext().defaultGenerator(device)), state_(read()) {}

  /// Goes back to this state while `run` runs.
  template <typename Run>
  auto replay(const Run& run) const {
    const auto present = read();
    write(state_);
    const struct Restore {
      const RandomState& owner;
      const at::Tensor& state;
      ~Restore() { owner.write(state); }
    } restore{*this, present};
    return run();
  }

 private:
  at::Tensor read() const {
    const std::scoped_lock lock(generator_.mutex());
    return generator_.get_state();
  }
  void write(const at::Tensor& state) const {
    const std::scoped_lock lock(generator_.mutex());
    generator_.set_state(state);
  }

  mutable at::Generator generator_;  // its lock is not const
  at::Tensor state_;
};

/// Autocast as it was when the object was made.
class AutocastState {
 public:
  explicit AutocastState(at::DeviceType device)
      : device_(device),
        enabled_(at::autocast::is_autocast_enabled(device)),
        dtype_(at::autocast::get_autocast_dtype(device)) {}
  void put_in_force() const {
    at::autocast::set_autocast_enabled(device_, enabled_);
    at::autocast::set_autocast_dtype(device_, dtype_);
  }

 private:
  at::DeviceType device_;
  bool enabled_;
  at::ScalarType dtype_;
};

/// Autocast keeps what it makes of weights for their next use. What it makes here must not be kept:
/// it has no graph at first, and when computed anew outlives the step of the optimizer.
class WithoutAutocastCache {
 public:
  WithoutAutocastCache() { at::autocast::set_autocast_cache_enabled(false); }
  ~WithoutAutocastCache() { at::autocast::set_autocast_cache_enabled(enabled_); }
  WithoutAutocastCache(const WithoutAutocastCache&) = delete;
  WithoutAutocastCache& operator=(const WithoutAutocastCache&) = delete;

 private:
  const bool enabled_ = at::autocast::is_autocast_cache_enabled();
};

struct Recomputation : torch::CustomClassHolder {
  Recomputation(std::function<at::Tensor(const Tensors&)> function, const Tensors& inputs)
      : function(std::move(function)),
        num_inputs(inputs.size()),
        random(inputs[0].device()),
        autocast(inputs[0].device().type()) {}

  at::Tensor run(const Tensors& inputs) const {
    const WithoutAutocastCache without_cache;
    return function(inputs);
  }

  at::Tensor run_anew(const Tensors& inputs) const {
    const AutocastState present(inputs[0].device().type());
    autocast.put_in_force();
    const struct Restore {
      const AutocastState& state;
      ~Restore() { state.put_in_force(); }
    } restore{present};
    return random.replay([&] { return run(inputs); });
  }

  std::function<at::Tensor(const Tensors&)> function;
  size_t num_inputs;
  RandomState random;
  AutocastState autocast;
};

/// Copies outside the graph that gradients may be asked for.
Tensors leaves(const variable_list& saved, size_t count) {
  Tensors result;
  result.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    result.push_back(saved[i].detach().requires_grad_(saved[i].requires_grad()));
  }
  return result;
}

struct Checkpoint : public torch::autograd::Function<Checkpoint> {
  /// `tensors` are the inputs, then the parameters.
  static Variable forward(AutogradContext* context, at::TensorList tensors,
                          const c10::intrusive_ptr<Recomputation>& recomputation) {
    context->save_for_backward(tensors.vec());
    context->saved_data["recomputation"] = c10::IValue::make_capsule(recomputation);
    // With a graph, which is dropped at once: attention may take another path for inference, whose
    // rounding is not that of the recomputation.
    const at::AutoGradMode with_grad(true);
    return recomputation->run(tensors.slice(0, recomputation->num_inputs).vec()).detach();
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto capsule = context->saved_data["recomputation"].toCapsule();
    const auto& recomputation = static_cast<const Recomputation&>(*capsule);
    const auto saved = context->get_saved_variables();
    const auto inputs = leaves(saved, recomputation.num_inputs);
    variable_list sources;
    std::vector<size_t> places;
    for (size_t i = 0; i < saved.size(); ++i) {
      const auto& source = i < inputs.size() ? inputs[i] : saved[i];
      if (!source.requires_grad()) continue;
      sources.push_back(source);
      places.push_back(i);
    }
    const at::AutoGradMode with_grad(true);
    const auto output = recomputation.run_anew(inputs);
    const auto found =
        torch::autograd::grad({output}, sources, {gradients[0]}, /*retain_graph=*/false,
                              /*create_graph=*/false, /*allow_unused=*/true);
    variable_list result(saved.size() + 1);  // and none for the recomputation
    for (size_t i = 0; i < places.size(); ++i) result[places[i]] = found[i];
    return result;
  }
};

}  // namespace

at::Tensor checkpoint(std::function<at::Tensor(const Tensors&)> function, const Tensors& inputs,
                      const Tensors& parameters) {
  if (!at::GradMode::is_enabled()) return function(inputs);
  auto tensors = inputs;
  tensors.insert(tensors.end(), parameters.begin(), parameters.end());
  return Checkpoint::apply(at::TensorList(tensors),
                           c10::make_intrusive<Recomputation>(std::move(function), inputs));
}

}  // namespace heed::detail
