#include "weights/formats/archive.h"

#include <caffe2/serialize/inline_container.h>

#include <algorithm>
#include <cstring>

#include "weights/formats/libtorch_error.h"
#include "weights/formats/zip_directory.h"

namespace heed::detail {

namespace {

/// Hands a file's bytes to LibTorch's reader.
class BytesAdapter : public caffe2::serialize::ReadAdapterInterface {
 public:
  explicit BytesAdapter(std::string_view bytes) : bytes_(bytes) {}

  size_t size() const override { return bytes_.size(); }

  size_t read(uint64_t at, void* to, size_t count, const char* /*what*/) const override {
    if (at >= bytes_.size()) return 0;
    const auto part = bytes_.substr(at, count);
    std::memcpy(to, part.data(), part.size());
    return part.size();
  }

 private:
  std::string_view bytes_;
};

}  // namespace

bool is_archive(std::string_view file) { return file.substr(0, 4) == std::string_view("PK\3\4"); }

size_t memory_limit(const Bytes& bytes) {
  constexpr size_t kLeast = size_t{1} << 22;
  return kLeast + 8 * bytes.size();
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
  HEED_CHECK_FILE(false, bytes_, "PyTorch", "{}", first_sentence(reason));
}

Archive::Archive(const Bytes& bytes) : bytes_(bytes) {
  check_zip_directory(bytes, memory_limit(bytes));
  reader_ = guarded([&] {
    return std::make_unique<caffe2::serialize::PyTorchStreamReader>(
        std::make_shared<BytesAdapter>(bytes.view()));
  });
  if (!has("byteorder")) return;
  const auto order = stored("byteorder");
  HEED_CHECK_FILE(order == "little", bytes_, "PyTorch",
                  "byteorder ({}) must be little: save it on a machine of that order",
                  in_quotes(order));
}

Archive::~Archive() = default;

bool Archive::has(const std::string& name) const {
  return guarded([&] { return reader_->hasRecord(name); });
}

std::string_view Archive::stored(const std::string& name) const {
  HEED_CHECK_FILE(has(name), bytes_, "PyTorch", "it must hold a record {}", in_quotes(name));
  const auto [offset, size] = guarded(
      [&] { return std::pair(reader_->getRecordOffset(name), reader_->getRecordSize(name)); });
  HEED_CHECK_FILE(offset <= bytes_.size() && size <= bytes_.size() - offset, bytes_, "PyTorch",
                  "record {}: its place ({}, {} bytes) must lie in the file ({})", in_quotes(name),
                  offset, size, bytes_.size());
  return bytes_.view().substr(offset, size);
}

std::string Archive::text(const std::string& name) const {
  HEED_CHECK_FILE(has(name), bytes_, "PyTorch", "it must hold a record {}", in_quotes(name));
  const auto [data, size] = guarded([&] { return reader_->getRecord(name); });
  return {static_cast<const char*>(data.get()), size};
}

}  // namespace heed::detail
