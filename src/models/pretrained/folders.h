// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>

/// Folders of published models.

namespace heed::detail {

/// Throws c10::ValueError unless `folder` is one. The error advises how to download a model of this
/// name.
void check_folder(const std::string& folder);

/// The config.json that `path` is, or that the folder `path` has. Throws c10::ValueError, with such
/// advice, where there is nothing.
std::string config_at(const std::string& path);

}  // namespace heed::detail
