// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <heed/heed.h>
#include <torch/torch.h>

#include <iostream>
#include <string>

/// The code that the README and the guides in docs/ show, one function for each page, and the
/// examples in the comments of the headers. A test runs it and checks what it prints.
namespace guide {

/// Calls functions in turn.
template <typename... Functions>
void run(Functions... functions) {
  (functions(), ...);
}

void readme();
void getting_started();
void conventions();
void from_libtorch();
void from_python();
void weights();
void training();
void performance();
void serving();
void gpu();
void new_attention();

/// One function for each header, with the examples in its comments.
void headers_of_attention();
void headers_of_layers();
void headers_of_models();
void headers_of_training();

/// These read files that Python wrote: checkpoint.py, porting.py, and folders of transformers, of
/// which those that the header names are in the working directory.
void load_files();
void porting();
void pretrained(const std::string& folder);

}  // namespace guide
