// SPDX-License-Identifier: BSD-3-Clause
// Modules with several forwards, with an inherited one and with one, bound for Python.

#include <heed/heed.h>
#include <torch/python.h>

template <typename Module>
at::Tensor forward(Module& module, const at::Tensor& x) {
  return module.forward(x);
}

PYBIND11_MODULE(bound, module) {
  using torch::python::bind_module;
  bind_module<heed::MultiHeadAttentionImpl>(module, "MultiHeadAttention")
      .def(pybind11::init<int64_t, int64_t>())
      .def("forward", &forward<heed::MultiHeadAttentionImpl>);
  bind_module<heed::GroupQueryAttentionImpl>(module, "GroupQueryAttention")
      .def(pybind11::init<int64_t, int64_t, int64_t>())
      .def("forward", &forward<heed::GroupQueryAttentionImpl>);
  bind_module<heed::AttentionImpl>(module, "Attention").def(pybind11::init<int64_t>());
  bind_module<heed::AttentionV1Impl>(module, "AttentionV1").def(pybind11::init<int64_t>());
  bind_module<heed::ResidualAttentionImpl>(module, "ResidualAttention");
  bind_module<heed::SelfAttentionImpl>(module, "SelfAttention");
  bind_module<heed::LatentAttentionImpl>(module, "LatentAttention");
  bind_module<heed::DifferentialAttentionImpl>(module, "DifferentialAttention");
  bind_module<heed::EncoderImpl>(module, "Encoder");
  bind_module<heed::DecoderImpl>(module, "Decoder");
}
