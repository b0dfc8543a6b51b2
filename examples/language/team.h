// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <heed/decoder.h>
#include <heed/fused_adamw.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>

namespace heed::examples {

/// A text as a tensor of its bytes, and back.
at::Tensor to_bytes(const std::string& text);
std::string to_text(const at::Tensor& bytes);

/// How many processes split what: their product is the number of processes.
struct TeamSizes {
  int64_t data = 0;     ///< of the batch; 0: as many as the others leave
  int64_t context = 1;  ///< of each sequence
  int64_t tensor = 1;   ///< of the weights
};

/// Another process says why.
struct OtherFailed : std::runtime_error {
  OtherFailed() : std::runtime_error("another process failed") {}
};

/// The processes that train one model together: this one alone, unless a derived class has others.
/// All must call the same functions in the same order.
class Team {
 public:
  virtual ~Team() = default;

  /// Whether this process prints and writes files.
  virtual bool leads() const { return true; }
  /// Runs `work` in the process that leads, and gives all processes the text that it returns. If it
  /// throws, all do: the others OtherFailed.
  virtual std::string lead(const std::function<std::string()>& work) const { return work(); }
  void run_in_leader(const std::function<void()>& work) const;
  /// Throws std::runtime_error unless all processes have the same text.
  virtual void check_same(const std::string& /*name*/, const std::string& /*text*/) const {}

  /// Splits the model among the processes, before the first step.
  virtual void split(Decoder& /*model*/) {}
  /// Whether a process then holds a part of the weights.
  virtual bool splits_weights() const { return false; }

  /// This process's rows of a batch [B, ...]. Throws std::runtime_error if B cannot be split.
  virtual at::Tensor own_rows(const at::Tensor& batch) const { return batch; }
  /// The mean loss of the next tokens: of those windows [B, context + 1] that the process shares
  /// with those that hold other parts of the sequence and of the weights.
  virtual at::Tensor loss(Decoder& model, const at::Tensor& windows) const;
  /// Runs `loss` with random numbers of this process's own, and prepares the backward pass to
  /// average the gradients over the processes; or, if more batches follow, to add them up.
  virtual at::Tensor own_loss(const std::function<at::Tensor()>& loss, bool /*last_batch*/) {
    return loss();
  }
  /// Over the parts of the batch and the sequence.
  virtual double mean(double value) const { return value; }
  virtual bool any(bool value) const { return value; }
  /// Limits the norm of the gradients of the whole model, and updates its parameters.
  virtual void step(FusedAdamW& optimizer, Decoder& model, double most) const;

  /// The whole of a tensor that is split as the parameter of this name, and this process's part.
  virtual at::Tensor whole(const Decoder& /*model*/, const std::string& /*name*/,
                           const at::Tensor& part) const {
    return part;
  }
  virtual at::Tensor part(const Decoder& /*model*/, const std::string& /*name*/,
                          const at::Tensor& whole) const {
    return whole;
  }
};

/// The processes that torchrun has started. Throws std::runtime_error where heed was built without
/// heed::distributed.
std::unique_ptr<Team> make_process_team(const TeamSizes& sizes);

/// The processes of torchrun if it has started this one, else this process alone. Throws
/// std::runtime_error when the sizes do not fit their number.
std::unique_ptr<Team> make_team(const TeamSizes& sizes);

/// This process alone. Throws std::runtime_error when torchrun has started several.
std::unique_ptr<Team> make_team_of_one();

}  // namespace heed::examples
