#include <heed/weights.h>
#include <torch/serialize/output-archive.h>

#include <exception>

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
  const auto tensors = checked_tensors(module);
  detail::named("save_weights", [&] {
    detail::AtomicFile file(path);
    if (options.format() == WeightFormat::safetensors) {
      detail::write_safetensors(tensors, [&](std::string_view bytes) { file.write(bytes); });
    } else {
      write_torchscript(module, file);
    }
    file.commit();
  });
}

}  // namespace heed
