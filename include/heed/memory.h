// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <heed/export.h>

namespace heed {

/// Makes the C library keep the memory that is freed, so that the next tensors get it without the
/// kernel. A step of a training asks for gigabytes and gives them back; by default, glibc returns
/// each large block to the kernel, which clears it again, page by page, when it is asked for.
/// heed never calls this by itself: a program does, at the beginning of `main`.
///
/// @code
/// int main(int argc, char** argv) {
///   heed::reuse_memory();
/// @endcode
///
/// It sets, for the whole process and all its libraries, two of glibc's settings (mallopt(3)):
/// M_MMAP_MAX = 0, so that large blocks come from the heap, and M_TRIM_THRESHOLD = -1, so that the
/// heap is not given back. It also gives LibTorch an allocator for tensors on the CPU that calls
/// malloc, because posix_memalign, which LibTorch's own one calls, leaves gaps into which a block
/// of the same size does not fit; an allocator that the program has set itself stays. Only blocks
/// of the main thread, which also runs the backward pass of tensors on the CPU, are used again in
/// every size. Other threads have heaps of 64 MB: larger blocks of theirs are still mapped anew
/// each time.
///
/// The cost: the process keeps the memory of its peak, which can be more than without the call,
/// because free parts of the heap lie between used ones; growing a large block by `realloc` copies
/// it. An allocator that replaces glibc's, such as jemalloc, ignores the settings.
///
/// reuse_memory(false) gives free memory back to the kernel, and sets what glibc arrives at by
/// itself in programs with large blocks: M_MMAP_MAX = 65536, M_MMAP_THRESHOLD = 32 MB,
/// M_TRIM_THRESHOLD = 64 MB. It does not undo everything: glibc no longer adapts these thresholds,
/// settings of GLIBC_TUNABLES or of an earlier mallopt do not come back, and a block of the heap
/// stays there until it is freed.
///
/// A program that cannot be changed gets the two settings, if it runs on glibc, by an environment
/// variable:
/// GLIBC_TUNABLES=glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=18446744073709551615
///
/// Returns whether the C library has taken the settings; calling it again changes nothing. False
/// where it has none, with musl and on macOS, and under AddressSanitizer. Call it before other
/// threads start: glibc reads the settings without a lock.
HEED_API bool reuse_memory(bool on = true);

}  // namespace heed
