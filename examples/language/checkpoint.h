// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <heed/named_tensors.h>

#include <string>

#include "team.h"

namespace heed::examples {

/// The state of a training, as its file has it. It is read by heed, which runs nothing that a file
/// holds; nothing in it has been checked.
class Checkpoint {
 public:
  /// The team's leader reads the file. Throws std::runtime_error or c10::ValueError when there is
  /// none, or when it is no training's state.
  Checkpoint(std::string path, const Team& team);

  /// The text about the run that `write_checkpoint` was given; all processes have it.
  const std::string& about() const { return about_; }

  /// The functions below are for the leader, which alone has the tensors.

  bool has(const std::string& name) const { return tensors_.count(name) > 0; }
  /// Throws std::runtime_error unless there is such a tensor. A size of -1 may be any.
  const at::Tensor& at(const std::string& name, at::ScalarType dtype, at::IntArrayRef sizes) const;
  /// Throws std::runtime_error, "cannot read FILE: `problem`", unless this is so.
  void check(bool sound, const std::string& problem) const;

 private:
  std::string path_, about_;
  NamedTensors tensors_;
};

/// Writes tensors, whose names may be dotted, and a text into a file, completely or not at all.
/// Throws c10::ValueError when it cannot be written.
void write_checkpoint(const NamedTensors& tensors, const std::string& about,
                      const std::string& path);

}  // namespace heed::examples
