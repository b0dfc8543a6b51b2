// SPDX-License-Identifier: BSD-3-Clause
#include <heed/weights.h>
#include <torch/serialize/output-archive.h>

#include <algorithm>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/error.h"
#include "modules/layers/packable.h"
#include "weights/formats/atomic_file.h"
#include "weights/formats/bytes.h"
#include "weights/formats/pytorch_dtypes.h"
#include "weights/formats/safetensors_writer.h"
#include "weights/module_tensors.h"
#include "weights/named.h"
#include "weights/packed_weights.h"
#include "weights/shards.h"
#include "weights/translation.h"

namespace heed {
namespace {

/// Whether TorchScript uses the name itself: as a word of its grammar, or for a list of a class.
bool is_reserved(const std::string& name) {
  static const std::set<std::string> reserved = {"False",
                                                 "None",
                                                 "True",
                                                 "__annotations__",
                                                 "__buffers__",
                                                 "__constants__",
                                                 "__parameters__",
                                                 "and",
                                                 "as",
                                                 "assert",
                                                 "break",
                                                 "class",
                                                 "continue",
                                                 "def",
                                                 "del",
                                                 "elif",
                                                 "else",
                                                 "for",
                                                 "global",
                                                 "if",
                                                 "import",
                                                 "in",
                                                 "is",
                                                 "not",
                                                 "or",
                                                 "pass",
                                                 "raise",
                                                 "return",
                                                 "while",
                                                 "with"};
  return reserved.count(name) > 0;
}

/// Throws unless the archive's code can declare the name: the code has no escapes.
void check_script_name(const std::string& name) {
  const bool has_marks = name.find_first_of("\"\\\n") != std::string::npos;
  HEED_CHECK(!name.empty() && !has_marks && !is_reserved(name),
             "name {} must be one that TorchScript's code can declare, not empty, without quotes, "
             "backslashes and line feeds and none of its keywords; WeightFormat::safetensors has "
             "any name",
             detail::in_quotes(name));
}

/// A module that has the tensors under their dotted names. Throws c10::ValueError for a part that
/// TorchScript cannot have.
std::shared_ptr<torch::nn::Module> module_of(const NamedTensors& tensors) {
  auto root = std::make_shared<torch::nn::Module>();
  std::map<std::string, std::shared_ptr<torch::nn::Module>> modules = {{"", root}};
  for (const auto& [name, tensor] : tensors) {
    auto module = root;
    size_t begin = 0;
    for (auto end = name.find('.'); end != std::string::npos; end = name.find('.', begin)) {
      const auto part = name.substr(begin, end - begin);
      check_script_name(part);
      auto& child = modules[name.substr(0, end)];
      if (!child) child = module->register_module(part, std::make_shared<torch::nn::Module>());
      module = child;
      begin = end + 1;
    }
    const auto own = name.substr(begin);
    check_script_name(own);
    if (at::isFloatingType(tensor.scalar_type())) {
      module->register_parameter(own, tensor, /*requires_grad=*/false);
    } else {
      module->register_buffer(own, tensor);
    }
  }
  return root;
}

/// Throws c10::ValueError unless a TorchScript archive of the module holds all of it.
void check_script(const torch::nn::Module& module) {
  std::set<std::string> names;
  const auto check = [&](const std::string& name) {
    check_script_name(name);
    HEED_CHECK(names.insert(name).second,
               "name {} must be of one tensor or module in TorchScript; "
               "WeightFormat::safetensors may have more",
               detail::in_quotes(name));
  };
  const auto check_tensors = [&](const detail::ModuleTensors& tensors) {
    for (const auto& item : tensors) {
      check(item.key());
      const auto dtype = item.value().scalar_type();
      HEED_CHECK(!detail::pytorch_name(dtype).empty(),
                 "{} dtype ({}) must be one that heed reads from TorchScript", item.key(),
                 c10::toString(dtype));
    }
  };
  check_tensors(module.named_parameters(/*recurse=*/false));
  check_tensors(module.named_buffers(/*recurse=*/false));
  for (const auto& child : module.named_children()) {
    if (!child.value()->is_serializable()) continue;
    check(child.key());
    check_script(*child.value());
  }
}

at::Tensor resolved(const at::Tensor& tensor) {
  return tensor.detach().resolve_conj().resolve_neg();
}

bool is_lazy(const at::Tensor& tensor) { return tensor.is_conj() || tensor.is_neg(); }

bool has_lazy_tensors(const torch::nn::Module& module) {
  const auto parameters = module.parameters(), buffers = module.buffers();
  return std::any_of(parameters.begin(), parameters.end(), is_lazy) ||
         std::any_of(buffers.begin(), buffers.end(), is_lazy);
}

/// A copy of the module in which conjugations and negations that were put off are carried out.
std::shared_ptr<torch::nn::Module> resolved(const torch::nn::Module& module) {
  auto copy = std::make_shared<torch::nn::Module>();
  for (const auto& item : module.named_parameters(/*recurse=*/false)) {
    copy->register_parameter(item.key(), resolved(item.value()), item.value().requires_grad());
  }
  for (const auto& item : module.named_buffers(/*recurse=*/false)) {
    copy->register_buffer(item.key(), resolved(item.value()));
  }
  for (const auto& child : module.named_children()) {
    if (child.value()->is_serializable()) {
      copy->register_module(child.key(), resolved(*child.value()));
    }
  }
  return copy;
}

void write_torchscript(const torch::nn::Module& module, detail::AtomicFile& file) {
  torch::serialize::OutputArchive archive;
  if (has_lazy_tensors(module)) {
    resolved(module)->save(archive);
  } else {
    module.save(archive);
  }
  std::exception_ptr
      error;  // LibTorch's writer, which writes once more when it ends, must not see it
  archive.save_to([&](const void* data, size_t size) {
    try {
      if (!error) file.write({static_cast<const char*>(data), size});
    } catch (const c10::Error&) {
      error = std::current_exception();
    }
    return size;
  });
  if (error) std::rethrow_exception(error);
}

/// Writes a module some of whose weights are packed.
void save_packed(const detail::ModuleTensors& weights, const std::string& path,
                 const SaveOptions& options) {
  HEED_CHECK(options.format() == WeightFormat::safetensors && options.name_map().empty(),
             "save_weights: format must be safetensors, and name_map empty, for a module whose "
             "weights are packed");
  NamedTensors tensors;
  std::map<std::string, std::string> metadata;
  for (const auto& item : weights) {
    if (detail::packed_weight_of(item.value()) != nullptr) {
      detail::add_packed(item.key(), item.value(), tensors, metadata);
    } else {
      tensors.emplace(item.key(), item.value().detach());
    }
  }
  detail::named("save_weights", [&] {
    detail::AtomicFile file(path);
    detail::write_safetensors(
        tensors, [&](const auto& name) { return tensors.at(name); },
        [&](std::string_view bytes) { file.write(bytes); }, metadata);
    file.commit();
  });
}

}  // namespace

void detail::save_weights(const std::vector<HeldTensor>& tensors, const std::string& path,
                          const SaveOptions& options,
                          const std::function<at::Tensor(const std::string&)>& values) {
  named("save_weights", [&] {
    const auto compositions = invert(options.name_map(), whole_shapes(tensors));
    const auto tensor = [&](const auto& name) { return make(compositions.at(name), values); };
    NamedTensors theirs;
    for (const auto& [name, composition] : compositions) theirs[name] = composition.shape;
    AtomicFile file(path);
    if (options.format() == WeightFormat::safetensors) {
      write_safetensors(theirs, tensor, [&](std::string_view bytes) { file.write(bytes); });
    } else {
      check_script(*module_of(theirs));
      for (auto& [name, whole] : theirs) whole = tensor(name);
      write_torchscript(*module_of(theirs), file);
    }
    file.commit();
  });
}

void save_weights(const torch::nn::Module& module, const std::string& path,
                  const SaveOptions& options) {
  const auto tensors = detail::weights_of(module);
  for (const auto& item : tensors) {
    if (detail::packed_weight_of(item.value()) != nullptr) continue;
    detail::check_holds_values("save_weights", item.key(), item.value());
  }
  if (detail::has_packed_weights(module)) return save_packed(tensors, path, options);
  if (options.format() == WeightFormat::torchscript && options.name_map().empty()) {
    // Writes the module as torch::save does, with buffers that weight files do not have.
    return detail::named("save_weights", [&] {
      check_script(module);
      detail::AtomicFile file(path);
      write_torchscript(module, file);
      file.commit();
    });
  }
  detail::save_weights(detail::held_tensors("save_weights", module, {}), path, options,
                       [&](const auto& name) { return tensors[name].detach(); });
}

void save_weights(const NamedTensors& tensors, const std::string& path,
                  const SaveOptions& options) {
  std::vector<detail::HeldTensor> held;
  for (const auto& [name, tensor] : tensors) {
    detail::check_holds_values("save_weights", name, tensor);
    held.push_back({name, tensor, detail::shape_alone(tensor), std::nullopt});
  }
  detail::save_weights(held, path, options,
                       [&](const auto& name) { return tensors.at(name).detach(); });
}

}  // namespace heed
