#include "distributed/collectives.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/version.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>

namespace heed::distributed::detail {

namespace {

std::atomic<int64_t> total_sent = 0;

/// LibTorch adds advice, a backtrace and its build machine's paths to errors.
std::string one_line(std::string text) {
  text = text.substr(0, std::min(text.find('\n'), text.find(". This is typically caused by")));
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

void reduce(const ProcessGroup& group, const std::string& operation, at::Tensor tensor,
            c10d::ReduceOp::RedOpType kind) {
  run_named(*group, operation, [&] {
    std::vector<at::Tensor> tensors = {std::move(tensor)};
    c10d::AllreduceOptions options;
    options.reduceOp = kind;
    group->allreduce(tensors, options)->wait();
  });
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

c10::intrusive_ptr<c10d::Work> send(const ProcessGroup& group, const std::string& operation,
                                    const at::Tensor& tensor, int64_t to, int tag) {
  std::vector<at::Tensor> tensors = {tensor};
  total_sent += static_cast<int64_t>(tensor.nbytes());
  return run_named(*group, operation,
                   [&] { return group->send(tensors, static_cast<int>(to), tag); });
}

c10::intrusive_ptr<c10d::Work> receive(const ProcessGroup& group, const std::string& operation,
                                       const at::Tensor& tensor, int64_t from, int tag) {
  std::vector<at::Tensor> tensors = {tensor};
  return run_named(*group, operation,
                   [&] { return group->recv(tensors, static_cast<int>(from), tag); });
}

int64_t bytes_sent() { return total_sent; }

void all_reduce(const ProcessGroup& group, const std::string& operation, at::Tensor tensor) {
  reduce(group, operation, std::move(tensor), c10d::ReduceOp::SUM);
}

void all_reduce_max(const ProcessGroup& group, const std::string& operation, at::Tensor tensor) {
  reduce(group, operation, std::move(tensor), c10d::ReduceOp::MAX);
}

at::Tensor reduce_scatter(const ProcessGroup& group, const std::string& operation,
                          const at::Tensor& x, int64_t dim) {
  // [P, ...]: the parts one after another.
  auto input = x.detach().unflatten(dim, {group->getSize(), -1}).movedim(dim, 0).contiguous();
  auto output = at::empty(input.sizes().slice(1), input.options());
  auto flat_input = input.view(-1), flat_output = output.view(-1);
  run_named(*group, operation, [&] {
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 13
    group->reduce_scatter_single(flat_output, flat_input)->wait();
#else
    group->_reduce_scatter_base(flat_output, flat_input)->wait();
#endif
  });
  return output;
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

at::Tensor exchange(const ProcessGroup& group, const std::string& operation,
                    const at::Tensor& tensor) {
  auto input = tensor.detach(), output = at::empty_like(input);
  std::vector<int64_t> even;
  run_named(*group, operation, [&] {
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 13
    group->all_to_all_single(output, input, even, even)->wait();
#else
    group->alltoall_base(output, input, even, even)->wait();
#endif
  });
  return output;
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
  const auto operation = fmt::format("{}: comparison of {}", function, name);
  auto digest = at::empty({1}, at::kLong);
  digest[0] = static_cast<int64_t>(std::hash<std::string>()(text));
  const auto digests = all_gather(group, operation, digest);
  if (std::all_of(digests.begin(), digests.end(),
                  [&](const auto& other) { return other.equal(digests[0]); })) {
    return;
  }
  const auto texts = all_gather(group, operation, text);
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
