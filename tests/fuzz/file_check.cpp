// SPDX-License-Identifier: BSD-3-Clause
// save_weights and load_weights at places of all kinds, of tensors with names of all kinds: a
// refusal that changes nothing, or a whole file in place of what was there, whose mode stays and
// from which every tensor is read under its name.

#include <ATen/TensorOperators.h>
#include <ATen/ops/zeros_like.h>
#include <heed/weights.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <system_error>

#include "attend_verdict.h"
#include "file_tensors.h"
#include "support/temporary_folder.h"
#include "support/weight_files.h"

namespace heed::fuzz {

namespace {

namespace fs = std::filesystem;

/// Kind, mode and content of everything in a folder, by name.
std::map<std::string, std::string> content_of(const fs::path& folder) {
  std::map<std::string, std::string> result;
  for (const auto& item : fs::recursive_directory_iterator(folder)) {
    const auto status = item.symlink_status();
    auto& text = result[item.path().lexically_relative(folder).string()];
    text = std::to_string(static_cast<int>(status.type())) + " " +
           std::to_string(static_cast<unsigned>(status.permissions())) + " ";
    if (fs::is_symlink(status)) text += fs::read_symlink(item.path()).string();
    if (fs::is_regular_file(status)) text += test::read_bytes(item.path());
  }
  return result;
}

/// A path; the name of the file that it leads to, empty where it can be none; and whether a file
/// is there.
struct Place {
  std::string path, target;
  bool there = false;
};

Place place_of_file(const fs::path& folder, mode_t mode) {
  const auto path = folder / "file";
  test::write_bytes(path, "before");
  ::chmod(path.c_str(), mode);
  return {path, "file", true};
}

Place place_of_link(const fs::path& folder, const std::string& to) {
  fs::create_symlink(to, folder / "link");
  return {folder / "link", "", false};
}

Place place_of_node(const fs::path& folder, mode_t kind) {
  const auto path = (folder / "node").string();
  // The null device's number, which takes root; a pipe does not.
  if (::mknod(path.c_str(), kind | 0600, ::makedev(1, 3)) != 0) ::mkfifo(path.c_str(), 0600);
  return {path, "", false};
}

Place make_place(const Case& c, const fs::path& folder) {
  fs::create_directory(folder / "inner");
  test::write_bytes(folder / "other", "other");
  switch (c.place % 16) {
    case 1:
      return place_of_file(folder, 0600);
    case 2:
      return place_of_file(folder, 0444);
    case 3:
      return {folder / "inner", "", false};
    case 4:
      return place_of_node(folder, S_IFIFO);
    case 5:
      return place_of_node(folder, S_IFCHR);
    case 6: {
      auto place = place_of_link(folder, "inner/new");
      place.target = "inner/new";
      return place;
    }
    case 7:
      return place_of_link(folder, "link");
    case 8: {
      place_of_file(folder, 0640);
      auto place = place_of_link(folder, "inner/../file");
      return {place.path, "file", true};
    }
    case 9:
      return place_of_link(folder, "nowhere/new");
    case 10:
      return {folder / std::string(250, 'n'), std::string(250, 'n'), false};
    case 11:
      return {folder / std::string(300, 'n'), "", false};
    case 12:
      return {(folder / "file").string() + std::string("\0other", 6), "", false};
    case 13:
      return {(folder / "new").string() + "/", "", false};
    case 14:
      return {folder / "nowhere" / "new", "", false};
    case 15:
      return {"", "", false};
    default:
      return {folder / "new", "new", false};
  }
}

bool are_equal(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() && a.equal(b);
}

/// A module of zeros takes from the file what `whole` says it holds, and stays as it was otherwise.
void check_loading(const FileTensors& expected, const Place& place, bool whole) {
  const auto module = expected.module(/*zeros=*/true);
  const auto options = LoadOptions().name_map(expected.map);
  const auto report =
      outcome(whole, {"load_weights"}, [&] { return load_weights(*module, place.path, options); });
  expect(!report || report->loaded.size() == expected.tensors.size(),
         "another number of weights is loaded");
  const auto parameters = module->named_parameters(), buffers = module->named_buffers();
  for (const auto& tensor : expected.tensors) {
    const auto& loaded = tensor.is_parameter ? parameters[tensor.name] : buffers[tensor.name];
    expect(are_equal(loaded, report ? tensor.value : at::zeros_like(tensor.value)),
           report ? "other weights are loaded" : "a refusal changed the module");
  }
}

void check_reading(const FileTensors& expected, const Place& place) {
  const auto tensors = outcome(true, {}, [&] { return read_weights(place.path); });
  const auto wanted = expected.in_file();
  expect(tensors->size() == wanted.size(), "another number of weights is read");
  for (const auto& [name, value] : wanted) {
    expect(tensors->count(name) == 1 && are_equal(tensors->at(name), value),
           "other weights are read");
  }
}

/// A module without one of the tensors, or with one that the file lacks, is not loaded.
void check_misfits(const FileTensors& saved, const Place& place) {
  auto less = saved, more = saved;
  less.tensors.pop_back();
  const auto last = saved.tensors.back();
  more.tensors.push_back({last.name + "_more", "", last.value, last.is_parameter});
  for (const auto& misfit : {less, more}) {
    const auto module = misfit.module(/*zeros=*/true);
    outcome(false, {"load_weights"},
            [&] { return load_weights(*module, place.path, LoadOptions().name_map(misfit.map)); });
    for (const auto& item : module->named_parameters()) {
      expect(item.value().ne(0).sum().item<int64_t>() == 0, "a refusal changed the module");
    }
  }
}

std::optional<bool> save(const Case& c, const FileTensors& tensors, const Place& place) {
  const auto format = c.weights != 0 ? WeightFormat::torchscript : WeightFormat::safetensors;
  const auto options = SaveOptions().format(format).name_map(tensors.map);
  const auto call = [&] {
    save_weights(*tensors.module(/*zeros=*/false), place.path, options);
    return true;
  };
  const auto fits = place.target.empty() ? false : fits_format(c, tensors);
  const auto mask = ::umask(027);
  std::string refusal;
  const auto saved =
      fits ? outcome(*fits, {"save_weights"}, call) : attempt({"save_weights"}, call, refusal);
  ::umask(mask);
  return saved;
}

}  // namespace

void check_file(const Case& c) {
  const test::TemporaryFolder folder("fuzz");
  const auto place = make_place(c, folder.path());
  const auto before = content_of(folder.path());
  const auto tensors = draw_file_tensors(c);
  check_loading(tensors, place, /*whole=*/false);
  expect(content_of(folder.path()) == before, "loading changed files");

  const auto saved = save(c, tensors, place);
  auto after = content_of(folder.path());
  if (!saved) return expect(after == before, "a refusal changed files");
  const auto mode = fs::status(folder.path() / place.target).permissions();
  const auto kept = place.there ? fs::perms(c.place % 16 == 1   ? 0600
                                            : c.place % 16 == 2 ? 0444
                                                                : 0640)
                                : fs::perms(0640);
  expect(mode == kept, "the file has another mode");
  check_loading(tensors, place, /*whole=*/true);
  check_reading(tensors, place);
  check_misfits(tensors, place);
  after.erase(place.target);
  auto others = before;
  others.erase(place.target);
  expect(after == others, "other files changed");
}

}  // namespace heed::fuzz
