#include <heed/weights.h>
#include <torch/serialize/output-archive.h>

#include <exception>
#include <map>
#include <memory>
#include <string>

#include "weights/formats/atomic_file.h"
#include "weights/formats/safetensors_writer.h"
#include "weights/module_tensors.h"
#include "weights/named.h"
#include "weights/shards.h"
#include "weights/translation.h"

namespace heed {
namespace {

/// A module that has the tensors under their dotted names.
std::shared_ptr<torch::nn::Module> module_of(const NamedTensors& tensors) {
  auto root = std::make_shared<torch::nn::Module>();
  std::map<std::string, std::shared_ptr<torch::nn::Module>> modules = {{"", root}};
  for (const auto& [name, tensor] : tensors) {
    auto module = root;
    size_t begin = 0;
    for (auto end = name.find('.'); end != std::string::npos; end = name.find('.', begin)) {
      auto& child = modules[name.substr(0, end)];
      if (!child) {
        child = module->register_module(name.substr(begin, end - begin),
                                        std::make_shared<torch::nn::Module>());
      }
      module = child;
      begin = end + 1;
    }
    const auto own = name.substr(begin);
    if (at::isFloatingType(tensor.scalar_type())) {
      module->register_parameter(own, tensor, /*requires_grad=*/false);
    } else {
      module->register_buffer(own, tensor);
    }
  }
  return root;
}

void write_torchscript(const torch::nn::Module& module, detail::AtomicFile& file) {
  torch::serialize::OutputArchive archive;
  module.save(archive);
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

}  // namespace

void detail::save_weights(const std::vector<HeldTensor>& tensors, const std::string& path,
                          const SaveOptions& options,
                          const std::function<at::Tensor(const std::string&)>& values) {
  named("save_weights", [&] {
    const auto recipes = invert(options.name_map(), whole_shapes(tensors));
    const auto tensor = [&](const auto& name) { return make(recipes.at(name), values); };
    NamedTensors theirs;
    for (const auto& [name, recipe] : recipes) theirs[name] = recipe.shape;
    AtomicFile file(path);
    if (options.format() == WeightFormat::safetensors) {
      write_safetensors(theirs, tensor, [&](std::string_view bytes) { file.write(bytes); });
    } else {
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
    detail::check_holds_values("save_weights", item.key(), item.value());
  }
  if (options.format() == WeightFormat::torchscript && options.name_map().empty()) {
    // As torch::save writes it, with buffers that weight files do not have.
    return detail::named("save_weights", [&] {
      detail::AtomicFile file(path);
      write_torchscript(module, file);
      file.commit();
    });
  }
  detail::save_weights(detail::held_tensors("save_weights", module, {}), path, options,
                       [&](const auto& name) { return tensors[name].detach(); });
}

}  // namespace heed
