// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <heed/export.h>
#include <heed/name_maps.h>
#include <heed/tensor_shard.h>
#include <torch/arg.h>
#include <torch/nn/module.h>

#include <cstddef>
#include <iosfwd>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace heed {

/// The tensors of a module of which it has only a part, by their dotted names.
using TensorShards = std::map<std::string, TensorShard>;

/// How `load_weights` reads a file, and what it does with names that do not fit.
struct HEED_API LoadOptions {
  /// If true, any name that is missing, unexpected or misshapen is an error, and nothing is loaded.
  /// If false, the names that fit are loaded and the others are only reported, with a warning if
  /// the module is not loaded completely.
  TORCH_ARG(bool, strict) = true;
  /// The place of the weights in a checkpoint that torch.save wrote, if it is a dict that holds
  /// more than the weights: a key such as "model", or a dotted path such as "ema.model" through its
  /// dicts. In a PT2 archive with several models, the name of one.
  TORCH_ARG(std::string, key) = "";
  /// Only names that begin with this prefix are read, and the prefix is removed: "encoder." turns
  /// "encoder.fc_q.weight" into "fc_q.weight".
  TORCH_ARG(std::string, prefix) = "";
  /// Translates the file's names and layouts, after the prefix has been removed; see name_maps.h
  /// for maps of common models.
  TORCH_ARG(NameMap, name_map) = {};
  /// The file's floating-point tensors are converted to this dtype, which must be the module's
  /// dtype; those of buffers, to the buffer's. By default nothing is converted, and a tensor of
  /// another dtype does not fit.
  TORCH_ARG(std::optional<at::ScalarType>, dtype) = std::nullopt;
  /// The device to which the module is moved after all checks have passed.
  TORCH_ARG(std::optional<at::Device>, device) = std::nullopt;
  /// The module's tensors that are a part of the file's tensors: those in the module must have the
  /// shard's size, and those in the file the whole size. Only the bytes of the parts are read, from
  /// files of any format.
  TORCH_ARG(TensorShards, shards) = {};
};

/// Reports what `load_weights` did with each name. Names are in the order of the module; names
/// that the module does not have are in alphabetical order.
struct HEED_API LoadReport {
  std::vector<std::string> loaded;   ///< in both, with the same shape and dtype: copied
  std::vector<std::string> missing;  ///< in the module, not in the file
  /// In the file, by its own names; not in the module. Also tensors that heed cannot hold, such as
  /// sparse ones.
  std::vector<std::string> unexpected;
  /// In both, with different shapes or dtypes: "fc_q.weight (Float [4, 4] in the module,
  /// Float [8, 4] in the file)", with the file's own name and shape if options change them. Also
  /// names under which the file has something other than a tensor.
  std::vector<std::string> misshapen;
  /// In the file but not in the module, and not a weight: a step count, "_extra_state", a constant
  /// of an exported program, an attribute of a scripted module, or a second name of a tensor.
  std::vector<std::string> passed_over;
  /// How many bytes were read from the file, from all files of an index, or from the stream.
  size_t bytes_read = 0;
};

/// Loads parameters and buffers from a file into the module's tensors of the same name, which keep
/// their device and requires_grad.
///
/// @code
/// heed::MultiHeadAttention attention(/*emb_dim=*/64, /*head_nums=*/4);
/// auto options = heed::LoadOptions().strict(false);
/// auto report = heed::load_weights(*attention, "attention.safetensors", options);
/// std::cout << report.loaded.size() << " loaded, " << report.missing.size() << " missing\n";
/// @endcode
///
/// The file's content tells its format, which may be
///   safetensors, also of safetensors.torch.save_model, which stores a tensor with several names
///   once;
///   what Python's torch.save wrote, in any version: a state_dict, or a checkpoint with one;
///   the index of a model in several files of these two formats;
///   a PT2 archive that torch.export.save wrote (scripts/export_model.py), version 2.2 or newer, or
///   an AOTInductor package with its weights in files of their own ("pickle_weights");
///   a TorchScript archive, scripted or traced;
///   an archive of C++'s torch::save.
/// The file is read piece by piece, and no code in it is run; a malicious file is an error. Names
/// must match exactly. Shapes are never converted, and dtypes only on request. Values that are not
/// tensors, such as a step count next to the weights, are skipped, and so are constants of an
/// exported program, such as buffers that are not persistent, and attributes of a scripted module
/// that are neither parameters nor buffers, unless the module has their names.
///
/// If `save_weights` has written packed weights, the module's layers get these in place of their
/// own, as from `pack_weights`, and its parameters stop requiring gradients.
///
/// A module that has a part of each of some tensors is loaded with options.shards, also by name
/// maps that rename, transpose, split or pack. Parts of rows that are shorter than 512 bytes are
/// read with what lies between them, and tensors of dtype Bool whole.
///
/// Throws c10::ValueError when the file cannot be read, when a parameter or buffer cannot be
/// written to, such as an expanded tensor, and when the file has different values under two names
/// of one tensor of the module, such as a head that is the embedding. They are compared bit for bit
/// in the module's dtype; NaN equals NaN. If options.strict(), also throws one error that lists
/// every missing, unexpected or misshapen name, with equal layers in one line, and then the options
/// that may help: a prefix, the map of name_maps.h that reads such names, a dtype. The module is
/// not changed then, and its values are not when memory runs out. The only exception is a file that
/// is cut short, or a disk that fails, while values are being read: some values are then already
/// loaded.
///
/// If the file is replaced by another one with the same name while it is read, as `save_weights`
/// does, the old file is read. If it is overwritten in place, the result has old values, new values
/// or a mixture.
HEED_API LoadReport load_weights(torch::nn::Module& module, const std::string& path,
                                 const LoadOptions& options = {});

/// Loads weights that are no file: embedded in the program, decrypted by it, or from a pipe. Reads
/// the stream from where it is to its end, and never goes back in it. Does what the overload above
/// does with a file of the same bytes, except that the index of several files is an error.
///
/// @code
/// std::istringstream stream(bytes_of_a_file);
/// heed::load_weights(*attention, stream);
/// @endcode
///
/// The stream's bytes stay in memory until the call returns: it takes as much memory as they do,
/// besides what a file would need.
/// Throws c10::ValueError also when the stream has failed, fails or is at its end.
HEED_API LoadReport load_weights(torch::nn::Module& module, std::istream& stream,
                                 const LoadOptions& options = {});

/// Returns the tensors of a file under the names in the file, on the CPU: to inspect weights, or to
/// read results that Python computed. Formats are as in `load_weights`; `key` is as in LoadOptions.
/// Throws c10::ValueError when the file cannot be read. Tensors that heed cannot hold are left out,
/// with a warning that names them.
HEED_API NamedTensors read_weights(const std::string& path, const std::string& key = "");

/// Returns the tensors of a stream, which is read as by `load_weights`. Until the call returns, the
/// stream's bytes and the tensors are in memory. Throws as for a file and a stream.
HEED_API NamedTensors read_weights(std::istream& stream, const std::string& key = "");

/// The file formats that `save_weights` writes.
enum class WeightFormat {
  safetensors,  ///< for safetensors.torch.load_file and most other programs
  torchscript,  ///< for torch.jit.load in Python, torch::load and torch::jit::load in C++
};

/// Options of `save_weights`.
struct HEED_API SaveOptions {
  /// Format of the file.
  TORCH_ARG(WeightFormat, format) = WeightFormat::safetensors;
  /// The map that `load_weights` takes for such a file: what is written has the other program's
  /// names and layouts; see NameMap::invert.
  TORCH_ARG(NameMap, name_map) = {};
};

/// Writes the parameters and buffers of a module, bit for bit, under the names that `load_weights`
/// looks for, with options.name_map if it is given. Weights that `pack_weights` has packed are
/// written as they are packed: as safetensors and without a map.
///
/// @code
/// heed::save_weights(*attention, "attention.safetensors");
/// heed::load_weights(*attention, "attention.safetensors");
/// @endcode
///
/// The file is written completely or not at all: if the process is killed or the disk is full, an
/// existing file stays as it was; a temporary file may be left next to it. An existing file keeps
/// its mode; a link is followed; a device or a pipe is an error.
/// Throws c10::ValueError when the file cannot be written, when the format has no such dtype or
/// name, or when the name map cannot be inverted.
HEED_API void save_weights(const torch::nn::Module& module, const std::string& path,
                           const SaveOptions& options = {});

/// Writes tensors that are in no module, such as activations or a state of one's own, as the
/// overload above writes those of a module. `read_weights` reads them, and so does Python.
///
/// @code
/// auto [output, weights] = attention->forward_with_weights(x);
/// heed::save_weights({{"output", output}, {"weights", weights}}, "maps.safetensors");
/// @endcode
///
/// Throws c10::ValueError also when a tensor is undefined, not strided or without values.
HEED_API void save_weights(const NamedTensors& tensors, const std::string& path,
                           const SaveOptions& options = {});

}  // namespace heed
