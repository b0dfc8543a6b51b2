// save_weights and load_weights at places of all kinds: a refusal that changes nothing, or a whole
// file in place of what was there, whose mode stays.

#include <heed/weights.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>
#include <system_error>

#include "attend_verdict.h"
#include "support/inputs.h"
#include "support/weight_files.h"

namespace heed::fuzz {

namespace {

namespace fs = std::filesystem;

/// A folder that goes with it.
class Folder {
 public:
  Folder() {
    auto name = (fs::temp_directory_path() / "heed_fuzz_XXXXXX").string();
    expect(::mkdtemp(name.data()) != nullptr, "no folder could be made");
    path_ = name;
  }
  ~Folder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  const fs::path& path() const { return path_; }

  /// Kind, mode and content of everything, by name.
  std::map<std::string, std::string> content() const {
    std::map<std::string, std::string> result;
    for (const auto& item : fs::recursive_directory_iterator(path_)) {
      const auto status = item.symlink_status();
      auto& text = result[item.path().lexically_relative(path_).string()];
      text = std::to_string(static_cast<int>(status.type())) + " " +
             std::to_string(static_cast<unsigned>(status.permissions())) + " ";
      if (fs::is_symlink(status)) text += fs::read_symlink(item.path()).string();
      if (fs::is_regular_file(status)) text += test::read_bytes(item.path());
    }
    return result;
  }

 private:
  fs::path path_;
};

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

test::Box make_box(const Case& c) {
  const auto dtype = dtype_of(c.dtype % 4);
  return test::Box({{"x", test::uniform({c.L % 9, 3}, dtype)}, {"y", test::uniform({}, dtype)}});
}

test::Box zeros_like(const test::Box& box) {
  return test::Box({{"x", box["x"] * 0}, {"y", box["y"] * 0}});
}

void check_loading(const test::Box& expected, const Place& place, bool whole) {
  auto box = zeros_like(expected);
  const auto report =
      outcome(whole, {"load_weights"}, [&] { return load_weights(box, place.path); });
  const auto& wanted = report ? expected : zeros_like(expected);
  expect(box["x"].equal(wanted["x"]) && box["y"].equal(wanted["y"]),
         report ? "other weights are loaded" : "a refusal changed the module");
}

}  // namespace

void check_file(const Case& c) {
  const Folder folder;
  const auto place = make_place(c, folder.path());
  const auto before = folder.content();
  const auto box = make_box(c);
  check_loading(box, place, /*whole=*/false);
  expect(folder.content() == before, "loading changed files");

  const auto format = c.weights != 0 ? WeightFormat::torchscript : WeightFormat::safetensors;
  const auto mask = ::umask(027);
  const auto saved = outcome(!place.target.empty(), {"save_weights"}, [&] {
    save_weights(box, place.path, SaveOptions().format(format));
    return true;
  });
  ::umask(mask);
  auto after = folder.content();
  if (!saved) return expect(after == before, "a refusal changed files");
  const auto mode = fs::status(folder.path() / place.target).permissions();
  const auto kept = place.there ? fs::perms(c.place % 16 == 1   ? 0600
                                            : c.place % 16 == 2 ? 0444
                                                                : 0640)
                                : fs::perms(0640);
  expect(mode == kept, "the file has another mode");
  check_loading(box, place, /*whole=*/true);
  after.erase(place.target);
  auto others = before;
  others.erase(place.target);
  expect(after == others, "other files changed");
}

}  // namespace heed::fuzz
