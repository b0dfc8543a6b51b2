#include "distributed/collectives.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <cstring>

namespace heed::distributed::detail {

namespace {

/// LibTorch adds a backtrace and its build machine's paths to errors.
std::string one_line(std::string text) {
  text = text.substr(0, text.find('\n'));
  if (const auto place = text.find("] "); text.rfind('[', 0) == 0 && place != std::string::npos) {
    text = text.substr(place + 2);
  }
  return text;
}

/// Splits off the first line of `rest`.
std::string take_line(std::string& rest) {
  const auto end = rest.find('\n');
  auto line = rest.substr(0, end);
  rest = end == std::string::npos ? "" : rest.substr(end + 1);
  return line;
}

}  // namespace

void throw_failure(const c10d::ProcessGroup& group, const std::string& operation,
                   const std::exception& cause) {
  const auto* error = dynamic_cast<const c10::Error*>(&cause);
  C10_THROW_ERROR(
      DistError,
      fmt::format("{} failed in process {} of {}: {}", operation, group.getRank(), group.getSize(),
                  one_line(error ? error->what_without_backtrace() : cause.what())));
}

void wait(const c10d::ProcessGroup& group, const std::string& operation,
          const c10::intrusive_ptr<c10d::Work>& work) {
  run_named(group, operation, [&] { work->wait(); });
}

void all_reduce(const ProcessGroup& group, const std::string& operation, at::Tensor tensor) {
  run_named(*group, operation, [&] {
    std::vector<at::Tensor> tensors = {std::move(tensor)};
    group->allreduce(tensors)->wait();
  });
}

void broadcast(const ProcessGroup& group, const std::string& operation, at::Tensor tensor,
               int64_t root) {
  run_named(*group, operation, [&] {
    std::vector<at::Tensor> tensors = {std::move(tensor)};
    c10d::BroadcastOptions options;
    options.rootRank = root;
    group->broadcast(tensors, options)->wait();
  });
}

std::vector<at::Tensor> all_gather(const ProcessGroup& group, const std::string& operation,
                                   const at::Tensor& tensor) {
  std::vector<at::Tensor> inputs = {tensor.detach().contiguous()};
  std::vector<std::vector<at::Tensor>> outputs(1);
  for (int i = 0; i < group->getSize(); ++i) outputs[0].push_back(at::empty_like(inputs[0]));
  run_named(*group, operation, [&] { group->allgather(outputs, inputs)->wait(); });
  return outputs[0];
}

std::vector<std::string> all_gather(const ProcessGroup& group, const std::string& operation,
                                    const std::string& text) {
  auto size = at::empty({1}, at::kLong);
  size[0] = static_cast<int64_t>(text.size());
  std::vector<int64_t> sizes;
  for (const auto& other : all_gather(group, operation, size)) {
    sizes.push_back(other.item<int64_t>());
  }
  // All tensors of one operation have one size.
  const auto room = std::max<int64_t>(*std::max_element(sizes.begin(), sizes.end()), 1);
  auto bytes = at::empty({room}, at::kByte);
  std::memcpy(bytes.mutable_data_ptr<uint8_t>(), text.data(), text.size());
  std::vector<std::string> texts;
  for (const auto& other : all_gather(group, operation, bytes)) {
    const auto* data = reinterpret_cast<const char*>(other.const_data_ptr<uint8_t>());
    texts.emplace_back(data, static_cast<size_t>(sizes[texts.size()]));
  }
  return texts;
}

void check_same(const ProcessGroup& group, const char* function, const char* name,
                const std::string& text) {
  const auto texts = all_gather(group, fmt::format("{}: comparison of {}", function, name), text);
  for (size_t rank = 1; rank < texts.size(); ++rank) {
    auto own = texts[rank], first = texts[0];
    while (own != first) {
      const auto own_line = take_line(own), first_line = take_line(first);
      HEED_CHECK(own_line == first_line, "{}: {} of rank {} ({}) must equal that of rank 0 ({})",
                 function, name, rank, own_line, first_line);
    }
  }
}

}  // namespace heed::distributed::detail
