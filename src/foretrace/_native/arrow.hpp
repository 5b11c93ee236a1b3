// The structures in which Arrow's readers take over columns without a copy: https://arrow.apache.org/docs/format/CDataInterface.html
#pragma once

#include <cstdint>

#ifndef ARROW_C_DATA_INTERFACE
#define ARROW_C_DATA_INTERFACE
extern "C" {
struct ArrowSchema {
  const char* format;
  const char* name;
  const char* metadata;
  int64_t flags;
  int64_t n_children;
  struct ArrowSchema** children;
  struct ArrowSchema* dictionary;
  void (*release)(struct ArrowSchema*);
  void* private_data;
};
struct ArrowArray {
  int64_t length;
  int64_t null_count;
  int64_t offset;
  int64_t n_buffers;
  int64_t n_children;
  const void** buffers;
  struct ArrowArray** children;
  struct ArrowArray* dictionary;
  void (*release)(struct ArrowArray*);
  void* private_data;
};
}
#endif

namespace foretrace {

constexpr int64_t kArrowNullable = 2;

// Arrow's name of a type of numbers by numpy's, and the size of a value.
struct ArrowType {
  const char* numpy;
  const char* format;
  int64_t bytes;
};
constexpr ArrowType kArrowTypes[] = {{"u1", "C", 1}, {"u2", "S", 2}, {"u4", "I", 4}, {"i4", "i", 4},
                                      {"u8", "L", 8}, {"i8", "l", 8}, {"f8", "g", 8}};

}  // namespace foretrace
