// SPDX-License-Identifier: BSD-3-Clause
#include "models/checkpointed_block.h"

#include <c10/util/ScopeExit.h>
#include <heed/sharded_layers.h>

#include <utility>
#include <vector>

#include "models/checkpoint.h"
#include "modules/attentions/given_inputs.h"

namespace heed::detail {

namespace {

struct NamedTensor {
  const char* name;
  at::Tensor* tensor;
};

/// Pointers to all tensors of the inputs, to read or replace them.
std::vector<NamedTensor> tensors_of(TransformerInputs& inputs) {
  std::vector<NamedTensor> tensors;
  const auto add = [&](const char* name, at::Tensor& tensor) {
    tensors.push_back({name, &tensor});
  };
  visit_tensors(inputs, add);
  if (auto& memory = inputs.memory()) add("memory", *memory);
  for (auto& memory : inputs.projected_memory()) {
    add("projected_memory", memory.key);
    add("projected_memory", memory.value);
  }
  if (auto& mask = inputs.memory_mask()) add("memory_mask", *mask);
  return tensors;
}

/// The modes, training or not, of a module and its submodules.
class Modes {
 public:
  explicit Modes(torch::nn::Module& module) : modules_(module.modules()) {
    for (const auto& each : modules_) training_.push_back(each->is_training());
  }
  /// Restores parents first, because that sets the modes of their children, too.
  void restore() const {
    for (size_t i = 0; i < modules_.size(); ++i) modules_[i]->train(training_[i]);
  }

 private:
  std::vector<std::shared_ptr<torch::nn::Module>> modules_;
  std::vector<bool> training_;
};

}  // namespace

at::Tensor forward_checkpointed(const char* function,
                                const std::shared_ptr<TransformerBlockImpl>& block,
                                const at::Tensor& x, const TransformerInputs& inputs) {
  auto own = inputs;
  std::vector<at::Tensor> tensors = {x};
  std::vector<const char*> names = {"x"};
  for (const auto& [name, tensor] : tensors_of(own)) {
    tensors.push_back(*tensor);
    names.push_back(name);
  }
  // The block uses its own parameters. Those without a gradient are listed only so that a change
  // of them is noticed; `checkpoint` finds the others.
  for (const auto& parameter : block->parameters()) {
    if (parameter.requires_grad()) continue;
    tensors.push_back(parameter);
    names.push_back("a parameter without gradient");
  }
  if (block->attention && block->attention->alibi_slopes.defined()) {
    tensors.push_back(block->attention->alibi_slopes);
    names.push_back("alibi_slopes");
  }
  const auto run = [block, own, modes = Modes(*block),
                    is_whole = WholeSequence::is_active()](const auto& tensors) {
    const WholeSequence as_before(is_whole);
    auto given = own;
    size_t next = 1;
    for (const auto& named : tensors_of(given)) *named.tensor = tensors[next++];
    const Modes present(*block);
    modes.restore();
    const auto restore = c10::make_scope_exit([&] { present.restore(); });
    return block->forward(tensors[0], given);
  };
  return checkpoint_named(function, run, tensors, std::move(names));
}

}  // namespace heed::detail
