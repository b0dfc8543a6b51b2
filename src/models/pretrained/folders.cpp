// SPDX-License-Identifier: BSD-3-Clause
#include "models/pretrained/folders.h"

#include <filesystem>
#include <set>
#include <string_view>
#include <system_error>

#include "core/error.h"

namespace heed::detail {

namespace {

bool is_folder(const std::string& path) {
  std::error_code error;  // a path that cannot be looked at is no folder
  return std::filesystem::is_directory(path, error);
}

bool exists(const std::string& path) {
  std::error_code error;  // a path that cannot be looked at does not exist
  return std::filesystem::exists(path, error);
}

/// Whether a path may be the name of a model on huggingface.co: "gpt2", "meta-llama/Llama-3.2-1B".
/// The name of a file is none.
bool may_be_model(const std::string& path) {
  constexpr auto kCharacters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-/";
  const auto slash = path.find('/');
  const auto last = path.substr(slash + 1);
  if (path.find_first_not_of(kCharacters) != std::string::npos || slash != path.rfind('/') ||
      std::string_view("_.-/").find(path[0]) != std::string_view::npos) {
    return false;
  }
  static const std::set<std::string> others = {"", ".", ".."};
  static const std::set<std::string> files = {".json", ".safetensors", ".bin",
                                              ".pt",   ".pth",         ".gguf"};
  return others.count(last) + files.count(std::filesystem::path(last).extension().string()) == 0;
}

/// Advice for a path that leads nowhere: if it may be the name of a model on huggingface.co, the
/// command that downloads the model.
std::string download_advice(const std::string& path) {
  if (!may_be_model(path)) return "";
  const auto folder = path.substr(path.find('/') + 1);
  return fmt::format("; heed downloads nothing: run hf download {} --local-dir {}, and pass {}",
                     path, folder, folder);
}

}  // namespace

void check_folder(const std::string& folder) {
  HEED_CHECK(exists(folder), "folder ({}) must exist{}", folder, download_advice(folder));
  if (is_folder(folder)) return;
  const auto parent = std::filesystem::path(folder).parent_path().string();
  const auto own = parent.empty() ? "." : parent;
  HEED_CHECK(false, "folder ({}) must be a folder; it is a file: {}", folder,
             exists(own + "/config.json") ? "pass its folder, " + own
                                          : "load_weights reads one into a module");
}

std::string config_at(const std::string& path) {
  const auto advice = exists(path) ? "" : download_advice(path);
  HEED_CHECK(advice.empty(), "path ({}) must exist{}", path, advice);
  return is_folder(path) ? path + "/config.json" : path;
}

}  // namespace heed::detail
