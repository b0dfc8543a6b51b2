// SPDX-License-Identifier: BSD-3-Clause
#include "weights/formats/archive.h"

#include <caffe2/serialize/inline_container.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "core/lack_of_memory.h"
#include "weights/formats/libtorch_error.h"

namespace heed::detail {

/// Hands a file's bytes to LibTorch's reader. The reader is C code inside, so no exception may
/// pass through it: `check` throws it later.
class Archive::Adapter : public caffe2::serialize::ReadAdapterInterface {
 public:
  explicit Adapter(Bytes bytes) : bytes_(std::move(bytes)) {}

  size_t size() const override { return bytes_.size(); }

  size_t read(uint64_t at, void* to, size_t count, const char* /*what*/) const override {
    if (at >= bytes_.size()) return 0;
    const auto there = std::min<size_t>(count, bytes_.size() - at);
    try {
      bytes_.read(at, to, there);
    } catch (const c10::ValueError&) {
      error_ = std::current_exception();
      return 0;
    }
    return there;
  }

  /// Throws the error of a failed read, if there was one.
  void check() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  Bytes bytes_;
  mutable std::exception_ptr error_;
};

void check_byte_order(const Bytes& bytes, const std::string& order) {
  HEED_CHECK_FILE(order == "little", bytes, "PyTorch",
                  "byteorder ({}) must be little: save it on a machine of that order",
                  in_quotes(order));
}

/// Returns what `call` returns. Turns errors of LibTorch into c10::ValueError, unless they say that
/// memory has run out: the limit of a record is small.
template <typename Call>
auto Archive::guarded(Call&& call) const {
  std::string reason;
  try {
    return call();
  } catch (const std::exception& error) {
    if (is_lack_of_memory(error)) throw;
    const auto* plain = dynamic_cast<const c10::Error*>(&error);
    reason = plain != nullptr ? plain->what_without_backtrace() : error.what();
  }
  adapter_->check();
  HEED_CHECK_FILE(false, bytes_, "PyTorch", "{}", first_sentence(reason));
}

Archive::Archive(const ZipDirectory& directory) : directory_(directory), bytes_(directory.bytes()) {
  directory.check_version();
  if (has("byteorder")) check_byte_order(bytes_, stored("byteorder"));
}

Archive::~Archive() = default;

const ZipDirectory::Record* Archive::find(std::string_view name) const {
  return directory_.record(std::string(directory_.top()).append(name));
}

bool Archive::has(std::string_view name) const { return find(name) != nullptr; }

Place Archive::place(std::string_view name) const {
  const auto* const record = find(name);
  HEED_CHECK_FILE(record != nullptr && record->stored, bytes_, "PyTorch",
                  "it must hold a record {}", in_quotes(name));
  return record->place;
}

std::string Archive::stored(std::string_view name) const {
  const auto [offset, size] = place(name);
  return bytes_.text(offset, size);
}

std::string Archive::text(std::string_view name) const {
  const auto* const record = find(name);
  return record == nullptr || record->stored ? stored(name) : inflated(std::string(name));
}

/// Reads a compressed record by LibTorch's reader, which is made only now: few archives have such
/// records, and only for TorchScript's code.
std::string Archive::inflated(const std::string& name) const {
  if (!adapter_) adapter_ = std::make_shared<Adapter>(bytes_);
  return guarded([&]() -> std::string {
    if (!reader_) reader_ = std::make_unique<caffe2::serialize::PyTorchStreamReader>(adapter_);
    const auto [data, size] = reader_->getRecord(name);
    return {static_cast<const char*>(data.get()), size};
  });
}

}  // namespace heed::detail
