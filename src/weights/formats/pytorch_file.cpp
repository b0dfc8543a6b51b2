// SPDX-License-Identifier: BSD-3-Clause
#include "weights/formats/pytorch_file.h"

#include <string>

#include "weights/formats/archive.h"
#include "weights/formats/pickle.h"
#include "weights/formats/pickled_tensors.h"
#include "weights/formats/script_module.h"
#include "weights/formats/state_dict.h"

namespace heed::detail {

namespace {

/// An archive and the pickle in it, which is not run.
struct SavedObject {
  explicit SavedObject(const ZipDirectory& directory)
      : archive(directory),
        text(archive.stored(kRecord)),
        pickle(archive.bytes().source(), kRecord, text, memory_limit(archive.bytes())) {}

  static constexpr const char* kRecord = "data.pkl";
  Archive archive;
  std::string text;  // the pickle's strings point into it
  Pickle pickle;
};

}  // namespace

FileEntries read_pytorch_file(const ZipDirectory& directory, const std::string& key) {
  const SavedObject saved(directory);
  const auto& bytes = directory.bytes();
  const auto& root = saved.pickle.root();
  if (callee_of(root).rfind("__torch__.", 0) != 0) {
    return read_state_dict(bytes, root, key, PickledTensors(saved.archive));
  }
  HEED_CHECK(key.empty(),
             "key ({}) must be empty: {} is a TorchScript archive; "
             "options.prefix selects names",
             key, bytes.source());
  return read_script_module(saved.archive, root);
}

std::variant<StoredTensor, Unheld> read_saved_tensor(const ZipDirectory& directory,
                                                     const std::string& place) {
  const SavedObject saved(directory);
  const auto& root = saved.pickle.root();
  HEED_CHECK_STORED(is_tensor(root), directory.bytes(), place, "it must be a tensor; it is {}",
                    describe(root));
  return PickledTensors(saved.archive).stored(root, place);
}

}  // namespace heed::detail
