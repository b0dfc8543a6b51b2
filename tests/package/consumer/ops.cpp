// SPDX-License-Identifier: BSD-3-Clause
// Uses heed::ops: calls an operator of a library that nothing else in the program names.
#include <ATen/Functions.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <iostream>
#include <vector>

int main() {
  const auto attend = c10::Dispatcher::singleton().findSchemaOrThrow("heed::attend", "");
  const at::Tensor heads = at::ones({2, 4, 5, 8});
  std::vector<c10::IValue> stack = {heads, heads, heads};
  const auto& arguments = attend.schema().arguments();
  for (auto i = stack.size(); i < arguments.size(); ++i) {
    stack.push_back(*arguments[i].default_value());
  }
  attend.callBoxed(stack);
  std::cout << "attended " << stack[0].toTensor().sizes() << "\n";
}
