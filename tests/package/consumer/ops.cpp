// Uses heed::ops: a TorchScript function that calls an operator of a library that nothing else
// names.
#include <ATen/Functions.h>
#include <torch/jit.h>

#include <iostream>

int main() {
  const auto functions = torch::jit::compile(R"(
def attend(heads):
    return torch.ops.heed.attend(heads, heads, heads, causal=True)
)");
  const auto attended = functions->run_method("attend", at::ones({2, 4, 5, 8})).toTensor();
  std::cout << "attended " << attended.sizes() << "\n";
}
