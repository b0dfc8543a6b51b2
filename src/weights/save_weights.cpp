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

namespace heed {
namespace {

NamedTensors checked_tensors(const torch::nn::Module& module) {
  NamedTensors tensors;
  for (const auto& item : detail::weights_of(module)) {
    detail::check_holds_values("save_weights", item.key(), item.value());
    tensors[item.key()] = item.value().detach();
  }
  return tensors;
}

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

void save_weights(const torch::nn::Module& module, const std::string& path,
                  const SaveOptions& options) {
  const auto& map = options.name_map();
  auto tensors = checked_tensors(module);
  detail::named("save_weights", [&] {
    if (!map.empty()) tensors = map.invert(module);
    detail::AtomicFile file(path);
    if (options.format() == WeightFormat::safetensors) {
      detail::write_safetensors(tensors, [&](std::string_view bytes) { file.write(bytes); });
    } else {
      write_torchscript(map.empty() ? module : *module_of(tensors), file);
    }
    file.commit();
  });
}

}  // namespace heed
