#pragma once

#include <heed/export.h>
#include <heed/name_maps.h>
#include <torch/arg.h>
#include <torch/nn/module.h>

#include <optional>
#include <string>
#include <vector>

namespace heed {

/// How `load_weights` treats what does not fit.
struct HEED_API LoadOptions {
  /// When true, a name that is missing, unexpected or misshapen is an error and nothing is loaded.
  /// When false, the names that fit are loaded and the others are only reported, with a warning
  /// where the module is not loaded whole.
  TORCH_ARG(bool, strict) = true;
  /// Where the weights are in a checkpoint that torch.save wrote, a dict of more than them:
  /// "model", or a dotted path through its dicts, "ema.model".
  TORCH_ARG(std::string, key) = "";
  /// Only names that begin with this are looked at, and it is removed from them: "encoder." makes
  /// "encoder.fc_q.weight" "fc_q.weight".
  TORCH_ARG(std::string, prefix) = "";
  /// Then translates the file's names and layouts; see name_maps.h for those in use.
  TORCH_ARG(NameMap, name_map) = {};
  /// The file's floating-point tensors are converted to this dtype, which must be the module's.
  /// Unless given, a dtype that differs does not fit.
  TORCH_ARG(std::optional<at::ScalarType>, dtype) = std::nullopt;
  /// The module is moved there, once everything has been checked.
  TORCH_ARG(std::optional<at::Device>, device) = std::nullopt;
};

/// What `load_weights` did with each name. In the module's order; names that it lacks by alphabet.
struct HEED_API LoadReport {
  std::vector<std::string> loaded;      ///< in both, same shape and dtype: copied
  std::vector<std::string> missing;     ///< in the module, not in the file
  std::vector<std::string> unexpected;  ///< in the file, by its own names; not in the module
  /// In both, shape or dtype differs: "fc_q.weight (Float [4, 4] in the module, Float [8, 4] in
  /// the file)", with the file's own name and shape where options change them. Likewise where the
  /// file has something else than a tensor.
  std::vector<std::string> misshapen;
  /// In the file, but neither a tensor nor a name in the module: a step count, "_extra_state".
  std::vector<std::string> passed_over;
};

/// Copies parameters and buffers into the module's of the same name, which stay on their device and
/// keep requires_grad.
///
/// The file is told apart by its content, and may be
///   safetensors, or the index of a model in several such files;
///   what Python's torch.save wrote, version 1.6 or newer: a state_dict, or a checkpoint with one;
///   a TorchScript archive, scripted or traced (scripts/export_torchscript.py);
///   an archive of C++'s torch::save.
/// It is read piece by piece, and no code in it is run: a hostile file is an error. Names match
/// exactly, and shapes are never converted, dtypes only on request. What is no tensor, such as a
/// step count beside the weights, is passed over.
///
/// Throws c10::ValueError when the file cannot be read, when a parameter or buffer cannot be copied
/// into, as an expanded one, and, if options.strict, one that lists every name that is missing,
/// unexpected or misshapen, equal layers in one line. Nothing is changed then, but where values can
/// no longer be read: by the time that a file is seen to have been cut short, or a disk to fail,
/// some are loaded.
///
/// A file that is replaced by another of its name, as `save_weights` does, is read as it was. One
/// that is written to in place gives old values, new ones or some of both.
HEED_API LoadReport load_weights(torch::nn::Module& module, const std::string& path,
                                 const LoadOptions& options = {});

/// The tensors of a file that `load_weights` reads, by the file's names, on the CPU: what Python
/// computed, or weights to look at. `key` as in LoadOptions.
/// Throws c10::ValueError when the file cannot be read.
HEED_API NamedTensors read_weights(const std::string& path, const std::string& key = "");

/// What `save_weights` writes.
enum class WeightFormat {
  safetensors,  ///< for safetensors.torch.load_file and most other programs
  torchscript,  ///< for torch.jit.load in Python, torch::load and torch::jit::load in C++
};

/// How `save_weights` writes.
struct HEED_API SaveOptions {
  /// Of the file.
  TORCH_ARG(WeightFormat, format) = WeightFormat::safetensors;
  /// The map that `load_weights` takes for such a file: what is written has the other program's
  /// names and layouts; see NameMap::invert.
  TORCH_ARG(NameMap, name_map) = {};
};

/// Writes parameters and buffers under the names by which `load_weights` finds them, or under those
/// that options.name_map translates, bit for bit.
///
/// The file is complete or is not changed: a process that is killed, or a disk that is full, leaves
/// what was there before, at worst with a temporary file beside it. A file that was there keeps its
/// mode; a link is followed; a device or a pipe is refused.
/// Throws c10::ValueError when the file cannot be written, when the format has no such dtype, or
/// when the name map cannot be turned around.
HEED_API void save_weights(const torch::nn::Module& module, const std::string& path,
                           const SaveOptions& options = {});

}  // namespace heed
