#include "weights/formats/archive.h"

#include <caffe2/serialize/inline_container.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "weights/formats/libtorch_error.h"

namespace heed::detail {

/// Hands a file's bytes to LibTorch's reader, which is C code inside: errors must not pass it.
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

  /// Throws what reading threw.
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

/// What `call` returns; what LibTorch throws becomes a c10::ValueError.
template <typename Call>
auto Archive::guarded(Call&& call) const {
  std::string reason;
  try {
    return call();
  } catch (const c10::Error& error) {
    reason = error.what_without_backtrace();
  } catch (const std::exception& error) {
    reason = error.what();
  }
  adapter_->check();
  HEED_CHECK_FILE(false, bytes_, "PyTorch", "{}", first_sentence(reason));
}

Archive::Archive(const ZipDirectory& directory)
    : bytes_(directory.bytes()), adapter_(std::make_shared<Adapter>(bytes_)) {
  directory.check_version();
  reader_ =
      guarded([&] { return std::make_unique<caffe2::serialize::PyTorchStreamReader>(adapter_); });
  if (has("byteorder")) check_byte_order(bytes_, stored("byteorder"));
}

Archive::~Archive() = default;

bool Archive::has(const std::string& name) const {
  return guarded([&] { return reader_->hasRecord(name); });
}

Place Archive::place(const std::string& name) const {
  HEED_CHECK_FILE(has(name), bytes_, "PyTorch", "it must hold a record {}", in_quotes(name));
  const auto [offset, size] = guarded(
      [&] { return std::pair(reader_->getRecordOffset(name), reader_->getRecordSize(name)); });
  HEED_CHECK_FILE(offset <= bytes_.size() && size <= bytes_.size() - offset, bytes_, "PyTorch",
                  "record {}: its place ({}, {} bytes) must lie in the file ({})", in_quotes(name),
                  offset, size, bytes_.size());
  return {offset, size};
}

std::string Archive::stored(const std::string& name) const {
  const auto [offset, size] = place(name);
  return bytes_.text(offset, size);
}

std::string Archive::text(const std::string& name) const {
  HEED_CHECK_FILE(has(name), bytes_, "PyTorch", "it must hold a record {}", in_quotes(name));
  const auto [data, size] = guarded([&] { return reader_->getRecord(name); });
  return {static_cast<const char*>(data.get()), size};
}

}  // namespace heed::detail
