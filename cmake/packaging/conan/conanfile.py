# SPDX-License-Identifier: BSD-3-Clause
import os
import re

from conan import ConanFile
from conan.errors import ConanInvalidConfiguration
from conan.tools.build import check_min_cppstd
from conan.tools.cmake import CMake, CMakeDeps, CMakeToolchain, cmake_layout
from conan.tools.files import copy, load, rmdir
from conan.tools.microsoft import is_msvc

required_conan_version = ">=2.4"


class HeedConan(ConanFile):
    name = "heed"
    description = "Attention for LibTorch"
    license = "BSD-3-Clause"
    topics = ("attention", "libtorch", "pytorch", "transformer")
    package_type = "library"
    settings = "os", "arch", "compiler", "build_type"
    options = {"shared": [True, False], "fPIC": [True, False]}
    default_options = {"shared": False, "fPIC": True}
    implements = ["auto_shared_fpic"]

    @property
    def _root(self):
        return os.path.join(self.recipe_folder, "..", "..", "..")

    def set_version(self):
        lists = load(self, os.path.join(self._root, "CMakeLists.txt"))
        self.version = re.search(r"project\(heed VERSION ([0-9.]+)", lists).group(1)

    def export_sources(self):
        for pattern in ("CMakeLists.txt", "LICENSE", "NOTICE", "cmake/*", "include/*", "src/*"):
            copy(self, pattern, self._root, self.export_sources_folder)

    def layout(self):
        cmake_layout(self)

    def requirements(self):
        # LibTorch promises no binary compatibility between versions.
        self.requires("libtorch/[>=2.6 <3]", transitive_headers=True, transitive_libs=True,
                      package_id_mode="patch_mode")
        self.requires("fmt/[>=9 <13]")
        self.requires("nlohmann_json/[>=3.11 <4]")

    def validate(self):
        check_min_cppstd(self, 17)
        if is_msvc(self):
            raise ConanInvalidConfiguration("heed does not compile with MSVC")

    def generate(self):
        toolchain = CMakeToolchain(self)
        for part in ("TESTS", "EXAMPLES", "BENCHMARKS", "DISTRIBUTED", "OPS"):
            toolchain.cache_variables[f"HEED_BUILD_{part}"] = False
        toolchain.generate()
        # The targets that LibTorch's own package and fmt's have.
        dependencies = CMakeDeps(self)
        dependencies.set_property("libtorch::torch", "cmake_target_name", "torch")
        dependencies.set_property("fmt", "cmake_target_name", "fmt::fmt-header-only")
        dependencies.generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.build()

    def package(self):
        CMake(self).install()
        for text in ("LICENSE", "NOTICE"):
            copy(self, text, self.source_folder, os.path.join(self.package_folder, "licenses"))
        rmdir(self, os.path.join(self.package_folder, "lib", "cmake"))
        rmdir(self, os.path.join(self.package_folder, "share"))

    def package_info(self):
        self.cpp_info.set_property("cmake_config_version_compat", "SameMinorVersion")
        self.cpp_info.libs = ["heed"]
        if not self.options.shared and self.settings.compiler in ("gcc", "clang"):
            self.cpp_info.exelinkflags = ["-fopenmp"]
            self.cpp_info.sharedlinkflags = ["-fopenmp"]
        self.cpp_info.requires = ["libtorch::torch", "fmt::fmt", "nlohmann_json::nlohmann_json"]
