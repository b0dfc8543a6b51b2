// SPDX-License-Identifier: BSD-3-Clause
#include "distributed/collectives.h"

#include <ATen/core/functional.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <torch/version.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <functional>
#include <numeric>
#include <utility>

namespace heed::distributed::detail {

namespace {

/// The first line of an error of LibTorch, without advice, backtrace and paths of the machine that
/// built it.
std::string one_line(std::string text) {
  text = text.substr(0, std::min(text.find('\n'), text.find(". This is typically caused by")));
  if (const auto place = text.find("] "); text.rfind('[', 0) == 0 && place != std::string::npos) {
    text = text.substr(place + 2);
  }
  return text;
}

constexpr int kTextTag = 0;

std::string text_of(const std::exception& error) {
  const auto* named = dynamic_cast<const c10::Error*>(&error);
  return named ? named->what_without_backtrace() : error.what();
}

std::string failure(int64_t rank, int64_t size, const std::string& operation,
                    const std::string& cause) {
  return fmt::format("{} failed in process {} of {}: {}", operation, rank, size, one_line(cause));
}

/// The elements of a contiguous tensor, as bytes.
at::Tensor bytes_of(const at::Tensor& tensor) { return tensor.reshape({-1}).view(at::kByte); }

/// Several tensors of one root, which are sent in one buffer.
struct Parcel {
  void allocate() { buffer = at::empty({bytes}, tensors[0].options().dtype(at::kByte)); }

  void pack() const {
    int64_t place = 0;
    for (const auto& tensor : tensors) {
      const auto elements = bytes_of(tensor.contiguous());
      buffer.narrow(0, place, elements.numel()).copy_(elements);
      place += elements.numel();
    }
  }

  void unpack() const {
    int64_t place = 0;
    for (const auto& tensor : tensors) {
      const auto received = at::empty_like(tensor, at::MemoryFormat::Contiguous);
      const auto elements = bytes_of(received);
      elements.copy_(buffer.narrow(0, place, elements.numel()));
      tensor.copy_(received);
      place += elements.numel();
    }
  }

  std::vector<at::Tensor> tensors;
  int64_t bytes = 0;
  at::Tensor buffer;
};

/// Puts tensors into parcels of at most kParcelBytes, or of one tensor.
std::vector<Parcel> make_parcels(const std::vector<at::Tensor>& tensors) {
  constexpr int64_t kParcelBytes = 16 << 20;
  std::vector<Parcel> parcels;
  for (const auto& tensor : tensors) {
    if (tensor.numel() == 0) continue;
    const auto size = static_cast<int64_t>(tensor.nbytes());
    if (parcels.empty() || parcels.back().bytes + size > kParcelBytes) parcels.emplace_back();
    parcels.back().tensors.push_back(tensor.detach());
    parcels.back().bytes += size;
  }
  return parcels;
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

/// Exchanges parts of dim 0: equal ones if no sizes are given.
void exchange_into(at::Tensor output, const ProcessGroup& group, const std::string& operation,
                   const at::Tensor& tensor, std::vector<int64_t> send,
                   std::vector<int64_t> receive) {
  auto input = tensor.detach();
  run_named(*group, operation, [&] {
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 13
    group->all_to_all_single(output, input, receive, send)->wait();
#else
    group->alltoall_base(output, input, receive, send)->wait();
#endif
  });
}

void broadcast_parcels(const ProcessGroup& group, const std::string& operation,
                       const std::vector<std::vector<at::Tensor>>& tensors_of) {
  std::vector<std::vector<Parcel>> parcels_of;
  size_t rounds = 0;
  for (const auto& tensors : tensors_of) {
    parcels_of.push_back(make_parcels(tensors));
    rounds = std::max(rounds, parcels_of.back().size());
  }
  // One parcel of each root at a time: links are used in both directions, and buffers stay small.
  for (size_t round = 0; round < rounds; ++round) {
    std::vector<c10::intrusive_ptr<c10d::Work>> works(parcels_of.size());
    for (size_t root = 0; root < parcels_of.size(); ++root) {
      if (round >= parcels_of[root].size()) continue;
      auto& parcel = parcels_of[root][round];
      parcel.allocate();
      if (static_cast<int64_t>(root) == group->getRank()) parcel.pack();
      works[root] = run_named(*group, operation, [&] {
        std::vector<at::Tensor> buffers = {parcel.buffer};
        c10d::BroadcastOptions options;
        options.rootRank = static_cast<int64_t>(root);
        return group->broadcast(buffers, options);
      });
    }
    for (size_t root = 0; root < parcels_of.size(); ++root) {
      if (!works[root]) continue;
      wait(*group, operation, works[root]);
      auto& parcel = parcels_of[root][round];
      if (static_cast<int64_t>(root) != group->getRank()) parcel.unpack();
      parcel.buffer.reset();
    }
  }
}

std::vector<std::string> gather_texts(const ProcessGroup& group, const std::string& operation,
                                      const std::string& text) {
  const auto size = at::full({1}, static_cast<int64_t>(text.size()), at::kLong);
  const auto sizes = c10::fmap(all_gather(group, operation, size),
                               [](const at::Tensor& other) { return other.item<int64_t>(); });
  // All tensors of one operation must have the same size.
  const auto room = std::max<int64_t>(*std::max_element(sizes.begin(), sizes.end()), 1);
  const auto bytes = at::empty({room}, at::kByte);
  std::memcpy(bytes.mutable_data_ptr<uint8_t>(), text.data(), text.size());
  std::vector<std::string> texts;
  for (const auto& other : all_gather(group, operation, bytes)) {
    const auto* data = reinterpret_cast<const char*>(other.const_data_ptr<uint8_t>());
    texts.emplace_back(data, static_cast<size_t>(sizes[texts.size()]));
  }
  return texts;
}

/// The texts of all processes, or none if they are equal.
std::vector<std::string> gather_different(const ProcessGroup& group, const std::string& operation,
                                          const std::string& text) {
  auto digest = at::empty({1}, at::kLong);
  digest[0] = static_cast<int64_t>(std::hash<std::string>()(text));
  const auto digests = all_gather(group, operation, digest);
  const bool equal = std::all_of(digests.begin(), digests.end(),
                                 [&](const auto& other) { return other.equal(digests[0]); });
  return equal ? std::vector<std::string>() : gather_texts(group, operation, text);
}

}  // namespace

void throw_failure(int64_t rank, int64_t size, const std::string& operation,
                   const std::exception& cause) {
  C10_THROW_ERROR(DistError, failure(rank, size, operation, text_of(cause)));
}

void throw_failure(c10d::ProcessGroup& group, const std::string& operation,
                   const std::exception& cause) {
  const auto reason = reason_of_closing(group);
  const auto text = failure(group.getRank(), group.getSize(), operation,
                            reason.empty() ? text_of(cause) : "the group is closed: " + reason);
  close_group(group, text);
  C10_THROW_ERROR(DistError, text);
}

void close_after(c10d::ProcessGroup& group, const std::string& exchange,
                 const std::exception& cause) {
  close_group(group, failure(group.getRank(), group.getSize(), exchange, text_of(cause)));
}

void wait(c10d::ProcessGroup& group, const std::string& operation,
          const c10::intrusive_ptr<c10d::Work>& work) {
  run_named(group, operation, [&] { work->wait(); });
}

c10::intrusive_ptr<c10d::Work> send(const ProcessGroup& group, const std::string& operation,
                                    const at::Tensor& tensor, int64_t to, int tag) {
  std::vector<at::Tensor> tensors = {tensor};
  return run_named(*group, operation,
                   [&] { return group->send(tensors, static_cast<int>(to), tag); });
}

c10::intrusive_ptr<c10d::Work> receive(const ProcessGroup& group, const std::string& operation,
                                       const at::Tensor& tensor, int64_t from, int tag) {
  std::vector<at::Tensor> tensors = {tensor};
  return run_named(*group, operation,
                   [&] { return group->recv(tensors, static_cast<int>(from), tag); });
}

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

void broadcast_all(const ProcessGroup& group, const std::string& operation,
                   const std::vector<std::vector<at::Tensor>>& tensors_of) {
  const at::NoGradGuard no_grad;
  run_exchange(group, operation, [&] { broadcast_parcels(group, operation, tensors_of); });
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
  auto output = at::empty_like(tensor);
  exchange_into(output, group, operation, tensor, {}, {});
  return output;
}

at::Tensor exchange_rows(const ProcessGroup& group, const std::string& operation,
                         const at::Tensor& tensor, const std::vector<int64_t>& send,
                         const std::vector<int64_t>& receive) {
  auto sizes = tensor.sizes().vec();
  sizes[0] = std::accumulate(receive.begin(), receive.end(), int64_t{0});
  auto output = at::empty(sizes, tensor.options().requires_grad(false));
  // Gloo knows only some dtypes, but bytes.
  exchange_into(output.view(at::kByte), group, operation, tensor.detach().view(at::kByte), send,
                receive);
  return output;
}

std::vector<std::string> all_gather(const ProcessGroup& group, const std::string& operation,
                                    const std::string& text) {
  return run_exchange(group, operation, [&] { return gather_texts(group, operation, text); });
}

void send_text(const ProcessGroup& group, const std::string& operation, const std::string& text,
               int64_t to) {
  run_exchange(group, operation, [&] {
    const auto size = at::full({1}, static_cast<int64_t>(text.size()), at::kLong);
    wait(*group, operation, send(group, operation, size, to, kTextTag));
    if (text.empty()) return;
    const auto bytes = at::from_blob(const_cast<char*>(text.data()),
                                     {static_cast<int64_t>(text.size())}, at::kByte);
    wait(*group, operation, send(group, operation, bytes, to, kTextTag));
  });
}

std::string receive_text(const ProcessGroup& group, const std::string& operation, int64_t from) {
  return run_exchange(group, operation, [&] {
    const auto size = at::empty({1}, at::kLong);
    wait(*group, operation, receive(group, operation, size, from, kTextTag));
    std::string text(static_cast<size_t>(size.item<int64_t>()), '\0');
    if (text.empty()) return text;
    const auto bytes = at::from_blob(text.data(), {size.item<int64_t>()}, at::kByte);
    wait(*group, operation, receive(group, operation, bytes, from, kTextTag));
    return text;
  });
}

void throw_everywhere(const ProcessGroup& group, const char* function, const std::string& error) {
  const auto errors = all_gather(group, fmt::format("{}: comparison of errors", function), error);
  HEED_CHECK(error.empty(), "{}", error);
  for (size_t rank = 0; rank < errors.size(); ++rank) {
    HEED_CHECK(errors[rank].empty(), "{} (in process {} of {})", errors[rank], rank, errors.size());
  }
}

std::string describe(const at::Tensor& tensor) {
  if (!tensor.defined()) return "undefined";
  auto text = c10::str(tensor.scalar_type(), " ", tensor.sizes());
  if (!tensor.is_contiguous()) text += c10::str(", strides ", tensor.strides());
  return text;
}

void check_same(const ProcessGroup& group, const char* function, const char* name,
                const std::string& text) {
  check_same(group, function, name, [&] { return text; });
}

void check_same(const ProcessGroup& group, const char* function, const char* name,
                const std::function<std::string()>& describe) {
  constexpr char kError = '\0';  // begins a text that is an error, not a description
  const auto operation = fmt::format("{}: comparison of {}", function, name);
  std::string text;
  std::exception_ptr error;
  try {
    text = describe();
  } catch (const std::exception& thrown) {
    error = std::current_exception();
    text = kError + text_of(thrown);
  }
  const auto texts =
      run_exchange(group, operation, [&] { return gather_different(group, operation, text); });
  if (error) std::rethrow_exception(error);
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    HEED_CHECK(texts[rank].empty() || texts[rank][0] != kError, "{} (in process {} of {})",
               texts[rank].substr(1), rank, texts.size());
  }
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
