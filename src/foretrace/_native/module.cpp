// The extension module foretrace._scan: glue between Python's stable ABI and the scanner and linker.
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>
#include <new>
#include <stdexcept>
#include <unordered_map>
#include <utility>

#ifdef _WIN32
#include <io.h>
#else
#include <unistd.h>
#endif

#include "arrow.hpp"
#include "lines.hpp"
#include "linker.hpp"
#include "nesting.hpp"
#include "pickle.hpp"
#include "replay.hpp"
#include "sqlite.hpp"

namespace foretrace {

double to_real(const Token& token) {
  const double none = std::nan("");
  if (token.type != Type::kInteger && token.type != Type::kNumber && token.type != Type::kString) return none;
  const char* p = token.text;
  const char* const end = p + token.length;
  if (token.type == Type::kString) {
    const Type type = classify_word(p, token.length);
    if (type != Type::kInteger && type != Type::kNumber) return none;
  }
  // Up to 15 digits and a power of ten up to 22 are exact in a double, and so is their quotient's rounding.
  static const double kPowers[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                                   1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
  const bool negative = *p == '-';
  const char* q = p + negative;
  uint64_t mantissa = 0;
  int digits = 0, fraction = 0;
  for (; q < end && is_digit(*q); ++q, ++digits) mantissa = mantissa * 10 + uint64_t(*q - '0');
  if (q < end && *q == '.') {
    for (++q; q < end && is_digit(*q); ++q, ++digits, ++fraction) mantissa = mantissa * 10 + uint64_t(*q - '0');
  }
  if (q == end && digits <= 15) {
    const double value = double(mantissa) / kPowers[fraction];
    return negative && token.type != Type::kInteger ? -value : negative ? 0 - value : value;
  }
  double value = none;
#if defined(__cpp_lib_to_chars) && __cpp_lib_to_chars >= 201611L
  const auto parsed = std::from_chars(p, end, value);
  if (parsed.ec == std::errc::result_out_of_range) {
    const std::string copy(p, token.length);
    value = std::strtod(copy.c_str(), nullptr);
  }
#else
  const std::string copy(p, token.length);
  value = std::strtod(copy.c_str(), nullptr);
#endif
  return std::isfinite(value) ? value : none;
}

}  // namespace foretrace

using namespace foretrace;

namespace {

// Runs `work` without the GIL; a C++ exception becomes Python's.
template <class Work>
bool unlocked(Work work) {
  const char* failure = nullptr;
  bool memory = false;
  PyThreadState* state = PyEval_SaveThread();
  try {
    work();
  } catch (const std::bad_alloc&) {
    memory = true;
  } catch (const std::exception&) {
    failure = "the scanner failed";
  }
  PyEval_RestoreThread(state);
  if (memory) PyErr_NoMemory();
  if (failure) PyErr_SetString(PyExc_RuntimeError, failure);
  return !memory && !failure;
}

// --- an array that Python may look at through the buffer protocol --------------------------------------------

struct ArrayObject {
  PyObject_HEAD
  std::shared_ptr<Memory>* memory;
  Py_ssize_t bytes;
};

// What a handed-over array keeps alive; given back by any thread, without Python.
struct Handed {
  std::shared_ptr<Memory> memory;
  std::vector<uint8_t> valid;
  const void* buffers[2];
};

void give_back_schema(ArrowSchema* schema) { schema->release = nullptr; }

template <class Struct>
void free_capsule(PyObject* capsule) {
  auto* held = static_cast<Struct*>(PyCapsule_GetPointer(capsule, PyCapsule_GetName(capsule)));
  if (held && held->release) held->release(held);
  delete held;
}

// One bit for each value that is not null; empty if none is.
template <class T, class IsNull>
std::vector<uint8_t> valid_bits(const void* data, size_t count, size_t& nulls, IsNull is_null) {
  const T* values = static_cast<const T*>(data);
  nulls = 0;
  for (size_t i = 0; i < count; ++i) nulls += is_null(values[i]);
  std::vector<uint8_t> bits;
  if (!nulls) return bits;
  bits.assign((count + 7) / 8, 0);
  const size_t whole = count / 8;
  for (size_t byte = 0; byte < whole; ++byte) {
    const T* eight = values + 8 * byte;
    uint8_t valid = 0;
    for (unsigned i = 0; i < 8; ++i) valid |= uint8_t(uint8_t(!is_null(eight[i])) << i);
    bits[byte] = valid;
  }
  for (size_t i = 8 * whole; i < count; ++i) bits[whole] |= uint8_t(uint8_t(!is_null(values[i])) << (i % 8));
  return bits;
}

void array_dealloc(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  delete reinterpret_cast<ArrayObject*>(self)->memory;
  PyObject_Free(self);
  Py_DECREF(type);
}

int array_buffer(PyObject* self, Py_buffer* view, int flags) {
  auto* array = reinterpret_cast<ArrayObject*>(self);
  static char nothing[1];
  void* data = array->bytes ? (*array->memory)->data() : nothing;
  return PyBuffer_FillInfo(view, self, data, array->bytes, 0, flags);
}

// The column as Arrow has it, its null values marked, without a copy: the two capsules of __arrow_c_array__.
PyObject* array_arrow(PyObject* self, PyObject* args) try {
  auto* array = reinterpret_cast<ArrayObject*>(self);
  const char* code;
  Py_ssize_t bytes;
  if (!PyArg_ParseTuple(args, "sn", &code, &bytes)) return nullptr;
  if (bytes != array->bytes) {
    PyErr_SetString(PyExc_ValueError, "not the whole column");
    return nullptr;
  }
  for (const ArrowType& type : kArrowTypes) {
    if (std::strcmp(type.numpy, code)) continue;
    static const uint64_t nothing = 0;
    auto handed = std::unique_ptr<Handed>(new Handed{*array->memory, {}, {nullptr, nullptr}});
    const void* data = array->bytes ? static_cast<const void*>(handed->memory->data()) : &nothing;
    const size_t count = size_t(bytes / type.bytes);
    size_t nulls = 0;
    const auto mark = [&](auto null) {
      handed->valid = valid_bits<decltype(null)>(data, count, nulls, [null](auto value) { return value == null; });
    };
    if (!std::strcmp(code, "u4")) mark(kNullU32);
    if (!std::strcmp(code, "i4")) mark(kNullI32);
    if (!std::strcmp(code, "u8")) mark(kNullU64);
    if (!std::strcmp(code, "i8")) mark(kNullI64);
    if (!std::strcmp(code, "f8")) {
      handed->valid = valid_bits<double>(data, count, nulls, [](double value) { return value != value; });
    }
    handed->buffers[0] = nulls ? handed->valid.data() : nullptr;
    handed->buffers[1] = data;
    auto* schema = new ArrowSchema{type.format, "", nullptr, kArrowNullable, 0, nullptr, nullptr, give_back_schema, nullptr};
    auto* out = new ArrowArray{int64_t(count), int64_t(nulls), 0, 2, 0, handed->buffers, nullptr, nullptr, nullptr, nullptr};
    out->private_data = handed.release();
    out->release = [](ArrowArray* each) {
      delete static_cast<Handed*>(each->private_data);
      each->release = nullptr;
    };
    PyObject* first = PyCapsule_New(schema, "arrow_schema", free_capsule<ArrowSchema>);
    PyObject* second = PyCapsule_New(out, "arrow_array", free_capsule<ArrowArray>);
    PyObject* both = first && second ? PyTuple_Pack(2, first, second) : nullptr;
    Py_XDECREF(first);
    Py_XDECREF(second);
    return both;
  }
  PyErr_SetString(PyExc_ValueError, "no such type of column");
  return nullptr;
} catch (const std::bad_alloc&) {
  return PyErr_NoMemory();
}

// Replaces each code by what a table of 32-bit numbers has for it; nulls stay.
PyObject* array_recode(PyObject* self, PyObject* table) {
  auto* array = reinterpret_cast<ArrayObject*>(self);
  Py_buffer view;
  if (PyObject_GetBuffer(table, &view, PyBUF_SIMPLE)) return nullptr;
  bool sound = true;
  const bool done = unlocked([&] {
    const size_t known = size_t(view.len) / sizeof(uint32_t), count = size_t(array->bytes) / sizeof(uint32_t);
    const auto* to = static_cast<const uint32_t*>(view.buf);
    auto* codes = reinterpret_cast<uint32_t*>((*array->memory)->data());
    for (size_t i = 0; i < count; ++i) sound &= codes[i] < known || codes[i] == kNullU32;
    for (size_t i = 0; sound && i < count; ++i) {
      if (codes[i] != kNullU32) codes[i] = to[codes[i]];
    }
  });
  PyBuffer_Release(&view);
  if (!done) return nullptr;
  if (!sound) {
    PyErr_SetString(PyExc_ValueError, "a code that the table does not have");
    return nullptr;
  }
  Py_RETURN_NONE;
}

PyMethodDef array_methods[] = {{"recode", array_recode, METH_O, "Replaces codes of 32 bits, in place, by those of a table."},
                               {"arrow", array_arrow, METH_VARARGS, "The column as Arrow's C structures, without a copy."},
                               {nullptr, nullptr, 0, nullptr}};

PyType_Slot array_slots[] = {{Py_tp_methods, array_methods},
                             {Py_tp_dealloc, reinterpret_cast<void*>(array_dealloc)},
                             {Py_bf_getbuffer, reinterpret_cast<void*>(array_buffer)},
                             {Py_tp_doc, const_cast<char*>("The memory of one column.")},
                             {0, nullptr}};
PyType_Spec array_spec = {"foretrace._scan.Array", sizeof(ArrayObject), 0,
                          Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, array_slots};
PyObject* array_type = nullptr;

PyObject* array_of(Memory memory, size_t bytes) {
  auto* array = PyObject_New(ArrayObject, reinterpret_cast<PyTypeObject*>(array_type));
  if (!array) return nullptr;
  array->memory = new std::shared_ptr<Memory>(std::make_shared<Memory>(std::move(memory)));
  array->bytes = Py_ssize_t(bytes);
  return reinterpret_cast<PyObject*>(array);
}

// Adds a column to a dictionary; false with an exception set.
template <class T>
bool put(PyObject* group, const char* name, Column<T>& column) {
  const size_t bytes = column.size() * sizeof(T);
  PyObject* array = array_of(column.take(), bytes);
  if (!array) return false;
  const int failed = PyDict_SetItemString(group, name, array);
  Py_DECREF(array);
  return !failed;
}

PyObject* new_group(PyObject* groups, const char* name) {
  PyObject* group = PyDict_New();
  if (!group) return nullptr;
  const int failed = PyDict_SetItemString(groups, name, group);
  Py_DECREF(group);  // the dictionary of groups holds it
  return failed ? nullptr : group;
}

bool put_groups(PyObject* groups, Output& out, Raw& raw) {
  PyObject* g = new_group(groups, "spans");
  if (!g || !put(g, "track", out.spans.track) || !put(g, "kind", out.spans.kind) || !put(g, "name", out.spans.name) ||
      !put(g, "start", out.spans.start) || !put(g, "dur", out.spans.dur) || !put(g, "depth", out.spans.depth) ||
      !put(g, "parent", out.spans.parent) || !put(g, "launch", out.spans.launch) || !put(g, "op", out.spans.op) ||
      !put(g, "step", out.spans.step)) {
    return false;
  }
  g = new_group(groups, "kernels");
  if (!g || !put(g, "span", out.kernels.span)) return false;
  static const char* const kGridNames[] = {"grid_x", "grid_y", "grid_z"};
  static const char* const kBlockNames[] = {"block_x", "block_y", "block_z"};
  for (int i = 0; i < 3; ++i) {
    if (!put(g, kGridNames[i], out.kernels.grid[i]) || !put(g, kBlockNames[i], out.kernels.block[i])) return false;
  }
  if (!put(g, "registers", out.kernels.registers) || !put(g, "shared", out.kernels.shared) ||
      !put(g, "blocks_per_sm", out.kernels.blocks_per_sm) || !put(g, "warps_per_sm", out.kernels.warps_per_sm) ||
      !put(g, "occupancy", out.kernels.occupancy) || !put(g, "graph", out.kernels.graph) ||
      !put(g, "graph_node", out.kernels.graph_node)) {
    return false;
  }
  g = new_group(groups, "copies");
  if (!g || !put(g, "span", out.copies.span) || !put(g, "size", out.copies.size)) return false;
  g = new_group(groups, "ops");
  if (!g || !put(g, "span", out.ops.span) || !put(g, "shapes", out.ops.shapes) || !put(g, "dtypes", out.ops.dtypes) ||
      !put(g, "strides", out.ops.strides) || !put(g, "inputs", out.ops.inputs) ||
      !put(g, "sequence", out.ops.sequence) ||
      !put(g, "forward_thread", out.ops.forward_thread) || !put(g, "forward", out.ops.forward) ||
      !put(g, "flops", out.ops.flops) || !put(g, "stack", out.ops.stack) || !put(g, "module", out.ops.module) ||
      !put(g, "call_stack", out.ops.call_stack)) {
    return false;
  }
  g = new_group(groups, "python");
  if (!g || !put(g, "span", out.python.span) || !put(g, "caller", out.python.caller) ||
      !put(g, "stack", out.python.stack) || !put(g, "module", out.python.module)) {
    return false;
  }
  g = new_group(groups, "counters");
  if (!g || !put(g, "track", raw.counters.track) || !put(g, "at", raw.counters.at) ||
      !put(g, "name", raw.counters.name) || !put(g, "key", raw.counters.key) || !put(g, "value", raw.counters.value)) {
    return false;
  }
  g = new_group(groups, "memory");
  if (!g || !put(g, "at", out.memory.at) || !put(g, "bytes", out.memory.bytes) ||
      !put(g, "address", out.memory.address) || !put(g, "device_type", out.memory.device_type) ||
      !put(g, "device_id", out.memory.device_id) || !put(g, "allocated", out.memory.allocated) ||
      !put(g, "reserved", out.memory.reserved) || !put(g, "op", out.memory.op) ||
      !put(g, "stack", out.memory.stack) || !put(g, "module", out.memory.module)) {
    return false;
  }
  g = new_group(groups, "stacks");
  if (!g || !put(g, "parent", out.stacks.parent) || !put(g, "name", out.stacks.name)) return false;
  g = new_group(groups, "modules");
  if (!g || !put(g, "parent", out.modules.parent) || !put(g, "name", out.modules.name)) return false;
  g = new_group(groups, "args");
  if (!g || !put(g, "span", out.args.span) || !put(g, "key", out.args.key) || !put(g, "type", out.args.type) ||
      !put(g, "value", out.args.value)) {
    return false;
  }
  Column<int64_t> device, stream;
  for (size_t i = 0; i < raw.lanes.size(); ++i) {
    device.push(raw.lane_device[i]);
    stream.push(raw.lane_stream[i]);
  }
  g = new_group(groups, "lanes");
  if (!g || !put(g, "device", device) || !put(g, "stream", stream)) return false;
  g = new_group(groups, "labels");
  if (!g || !put(g, "track", raw.labels.track) || !put(g, "name", raw.labels.name) ||
      !put(g, "text", raw.labels.text)) {
    return false;
  }
  g = new_group(groups, "instants");
  if (!g || !put(g, "name", raw.instants.name) || !put(g, "at", raw.instants.at)) return false;
  g = new_group(groups, "windows");
  if (!g || !put(g, "name", raw.windows.name) || !put(g, "start", raw.windows.start) ||
      !put(g, "dur", raw.windows.dur)) {
    return false;
  }
  g = new_group(groups, "steps");
  return g && put(g, "number", out.steps.number) && put(g, "start", out.steps.start) && put(g, "end", out.steps.end);
}

PyObject* list_of(const Texts& texts) {
  PyObject* list = PyList_New(Py_ssize_t(texts.size()));
  if (!list) return nullptr;
  for (size_t i = 0; i < texts.size(); ++i) {
    PyObject* item = PyBytes_FromStringAndSize(texts.text(i), Py_ssize_t(texts.length(i)));
    if (!item || PyList_SetItem(list, Py_ssize_t(i), item)) {
      Py_DECREF(list);
      return nullptr;
    }
  }
  return list;
}

// --- the scanner ------------------------------------------------------------------------------------------------

struct ScannerObject {
  PyObject_HEAD
  Scanner* scanner;
};

Scanner* scanner_of(PyObject* self) {
  Scanner* scanner = reinterpret_cast<ScannerObject*>(self)->scanner;
  if (!scanner) PyErr_SetString(PyExc_ValueError, "this scanner was merged or finished");
  return scanner;
}

PyObject* scanner_new(PyTypeObject* type, PyObject* args, PyObject*) {
  Py_ssize_t offset = -1;
  if (!PyArg_ParseTuple(args, "|n", &offset)) return nullptr;
  auto allocate = reinterpret_cast<allocfunc>(PyType_GetSlot(type, Py_tp_alloc));
  PyObject* self = allocate(type, 0);
  if (!self) return nullptr;
  auto* object = reinterpret_cast<ScannerObject*>(self);
  object->scanner = new (std::nothrow) Scanner();
  if (!object->scanner) {
    Py_DECREF(self);
    return PyErr_NoMemory();
  }
  if (offset >= 0) object->scanner->start_in_events(offset);
  return self;
}

void scanner_dealloc(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  delete reinterpret_cast<ScannerObject*>(self)->scanner;
  auto release = reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free));
  release(self);
  Py_DECREF(type);
}

PyObject* scanner_push(PyObject* self, PyObject* data) {
  Scanner* scanner = scanner_of(self);
  if (!scanner) return nullptr;
  Py_buffer view;
  if (PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)) return nullptr;
  const bool done = unlocked([&] {
    const size_t size = size_t(view.len);
    std::memcpy(scanner->room(size), view.buf, size);
    scanner->pushed(size);
  });
  PyBuffer_Release(&view);
  if (!done) return nullptr;
  Py_RETURN_NONE;
}

constexpr size_t kEventBytes = size_t(256) << 10;

PyObject* scanner_read(PyObject* self, PyObject* args) {
  int file;
  Py_ssize_t size;
  if (!PyArg_ParseTuple(args, "in", &file, &size)) return nullptr;
  Scanner* scanner = scanner_of(self);
  if (!scanner) return nullptr;
  if (size < 0) size = 0;
  size_t done = 0;
  int error = 0;
  if (!unlocked([&] {
        while (done < size_t(size) && !error) {
          // Events are read in pieces that stay close to the processor; a member around them must come whole.
          const size_t piece = std::min(size_t(size) - done, scanner->in_events() ? kEventBytes : size_t(size));
          char* room = scanner->room(piece);
          Py_ssize_t got;
#ifdef _WIN32
          got = _read(file, room, unsigned(piece));
#else
          do {
            got = ::read(file, room, piece);
          } while (got < 0 && errno == EINTR);
#endif
          error = got < 0 ? errno : 0;
          scanner->pushed(got > 0 ? size_t(got) : 0);
          if (got <= 0) break;
          done += size_t(got);
        }
      })) {
    return nullptr;
  }
  if (error) {
    errno = error;
    return PyErr_SetFromErrno(PyExc_OSError);
  }
  return PyLong_FromSize_t(done);
}

PyObject* scanner_between_events(PyObject* self, PyObject*) {
  Scanner* scanner = scanner_of(self);
  if (!scanner) return nullptr;
  return PyBool_FromLong(scanner->between_events());
}

PyObject* scanner_merge(PyObject* self, PyObject* other) {
  Scanner* scanner = scanner_of(self);
  if (!scanner) return nullptr;
  if (Py_TYPE(other) != Py_TYPE(self)) {
    PyErr_SetString(PyExc_TypeError, "merge takes a Scanner");
    return nullptr;
  }
  Scanner* from = scanner_of(other);
  if (!from) return nullptr;
  if (from == scanner) {
    PyErr_SetString(PyExc_ValueError, "a scanner cannot be merged with itself");
    return nullptr;
  }
  if (!unlocked([&] {
        from->finish();
        merge(*scanner, *from);
      })) {
    return nullptr;
  }
  delete from;
  reinterpret_cast<ScannerObject*>(other)->scanner = nullptr;
  Py_RETURN_NONE;
}

bool set(PyObject* into, const char* name, PyObject* value) {
  if (!value) return false;
  const int failed = PyDict_SetItemString(into, name, value);
  Py_DECREF(value);
  return !failed;
}

bool append(PyObject* list, PyObject* item) {
  const bool done = item && !PyList_Append(list, item);
  Py_XDECREF(item);
  return done;
}

PyObject* lanes_of(const Raw& raw) {
  PyObject* list = PyList_New(0);
  if (!list) return nullptr;
  for (const Raw::Lane& lane : raw.lanes) {
    if (!append(list, Py_BuildValue("(iLiL)", int(lane.text[0]), (long long)lane.value[0], int(lane.text[1]),
                                    (long long)lane.value[1]))) {
      Py_DECREF(list);
      return nullptr;
    }
  }
  return list;
}

PyObject* header_of(const Raw& raw) {
  PyObject* list = PyList_New(0);
  if (!list) return nullptr;
  for (const auto& member : raw.header) {
    if (!append(list, Py_BuildValue("(y#y#)", member.first.data(), Py_ssize_t(member.first.size()),
                                    member.second.data(), Py_ssize_t(member.second.size())))) {
      Py_DECREF(list);
      return nullptr;
    }
  }
  return list;
}

PyObject* repairs_of(const Raw& raw) {
  PyObject* repairs = PyDict_New();
  if (!repairs) return nullptr;
  for (int i = 0; i < kRepairCount; ++i) {
    if (!raw.repairs[i].count) continue;
    PyObject* item = raw.repairs[i].offset < 0
                         ? Py_BuildValue("(LO)", (long long)raw.repairs[i].count, Py_None)
                         : Py_BuildValue("(LL)", (long long)raw.repairs[i].count, (long long)raw.repairs[i].offset);
    if (!set(repairs, kRepairNames[i], item)) {
      Py_DECREF(repairs);
      return nullptr;
    }
  }
  return repairs;
}

PyObject* counts_of(const Raw& raw) {
  return Py_BuildValue("{sLsLsLsLsLsLsisi}", "events", (long long)raw.events, "flows", (long long)raw.flows,
                       "skipped_phase", (long long)raw.skipped_phase, "lost_bytes", (long long)raw.lost_bytes,
                       "op_ids", (long long)raw.op_ids, "op_id_range", (long long)raw.op_id_range,
                       "trace_events", int(raw.trace_events), "bare_list", int(raw.bare_list));
}

// Whether operators of several processes may have been recorded, or without any, calls of several: their ids mean nothing
// to one another.
bool several_processes(const Raw& raw) {
  struct {
    const Raw::Lane* first = nullptr;
    bool several = false;
    void add(const Raw::Lane& lane) {
      if (!first) first = &lane;
      several |= lane.text[0] != first->text[0] || lane.value[0] != first->value[0];
    }
  } ops, calls;
  for (size_t row = 0; row < raw.kind.size() && !ops.several; ++row) {
    if (raw.kind[row] == kOp) ops.add(raw.lanes[raw.lane[row]]);
    if (raw.kind[row] == kRuntime) calls.add(raw.lanes[raw.lane[row]]);
  }
  return ops.first ? ops.several : calls.several;
}

// Of a file with several processes, what tells whose each row is; None for any other. See ingest/processes.py.
PyObject* scanner_processes(PyObject* self, PyObject*) {
  Scanner* scanner = scanner_of(self);
  if (!scanner) return nullptr;
  bool several = false;
  Raw& raw = scanner->raw;
  Column<int64_t> start, dur;
  Column<uint32_t> lane;
  Column<uint8_t> kind;
  Column<uint64_t> correlation;
  if (!unlocked([&] {
        scanner->finish();
        several = !scanner->not_json() && several_processes(raw);
        size_t calls = 0, works = 0;
        for (size_t row = 0; several && row < raw.kind.size(); ++row) {
          start.push(raw.start[row]);
          dur.push(raw.dur[row]);
          lane.push(raw.lane[row]);
          kind.push(raw.kind[row]);
          const bool call = raw.kind[row] == kRuntime;
          correlation.push(call                        ? raw.runtime.correlation[calls++]
                           : on_device(raw.kind[row]) ? raw.device.correlation[works++]
                                                       : kNullU64);
        }
      })) {
    return nullptr;
  }
  if (!several) Py_RETURN_NONE;
  PyObject* result = PyDict_New();
  if (!result || !put(result, "start", start) || !put(result, "dur", dur) || !put(result, "lane", lane) ||
      !put(result, "kind", kind) || !put(result, "correlation", correlation) || !set(result, "lanes", lanes_of(raw)) ||
      !set(result, "texts", list_of(raw.texts))) {
    Py_XDECREF(result);
    return nullptr;
  }
  return result;
}

// Links everything but the rows that the argument marks, and hands it over; None if the text was not JSON at all.
PyObject* scanner_finish(PyObject* self, PyObject* args) {
  Py_buffer view{};
  if (!PyArg_ParseTuple(args, "|y*", &view)) return nullptr;
  std::vector<uint8_t> dropped;
  if (view.obj) {
    dropped.assign(static_cast<uint8_t*>(view.buf), static_cast<uint8_t*>(view.buf) + view.len);
    PyBuffer_Release(&view);
  }
  Scanner* scanner = scanner_of(self);
  if (!scanner) return nullptr;
  Output out;
  bool sound = true;
  if (!unlocked([&] {
        scanner->finish();
        sound = dropped.empty() || dropped.size() == scanner->raw.start.size();
        if (sound && !scanner->not_json()) Linker(scanner->raw, out, std::move(dropped)).run();
      })) {
    return nullptr;
  }
  if (!sound) {
    PyErr_SetString(PyExc_ValueError, "the marks are not those of this scanner's rows");
    return nullptr;
  }
  if (scanner->not_json()) Py_RETURN_NONE;
  Raw& raw = scanner->raw;
  PyObject* result = PyDict_New();
  PyObject* groups = PyDict_New();
  bool done = result && groups && put_groups(groups, out, raw);
  if (result && groups) {
    done = set(result, "groups", groups) && done;
  } else {
    Py_XDECREF(groups);
  }
  done = done && set(result, "names", list_of(raw.names)) && set(result, "texts", list_of(raw.texts)) &&
         set(result, "lanes", lanes_of(raw)) && set(result, "header", header_of(raw)) &&
         set(result, "repairs", repairs_of(raw)) && set(result, "counts", counts_of(raw)) &&
         set(result, "origin_ns", PyLong_FromLongLong(out.origin));
  delete scanner;
  reinterpret_cast<ScannerObject*>(self)->scanner = nullptr;
  if (!done) {
    Py_XDECREF(result);
    return nullptr;
  }
  return result;
}

PyMethodDef scanner_methods[] = {
    {"push", scanner_push, METH_O, "Reads more bytes."},
    {"read", scanner_read, METH_VARARGS, "Reads up to size bytes from a file descriptor; how many it got."},
    {"between_events", scanner_between_events, METH_NOARGS, "Whether all bytes so far are whole events."},
    {"merge", scanner_merge, METH_O, "Appends what another scanner read from the bytes behind."},
    {"processes", scanner_processes, METH_NOARGS, "What tells whose each row is, where there are several processes."},
    {"finish", scanner_finish, METH_VARARGS, "Everything but the marked rows, linked; None if the text is not JSON."},
    {nullptr, nullptr, 0, nullptr}};
PyType_Slot scanner_slots[] = {{Py_tp_new, reinterpret_cast<void*>(scanner_new)},
                               {Py_tp_dealloc, reinterpret_cast<void*>(scanner_dealloc)},
                               {Py_tp_methods, scanner_methods},
                               {Py_tp_doc, const_cast<char*>("Scans Kineto JSON; with an offset, from amid the events.")},
                               {0, nullptr}};
PyType_Spec scanner_spec = {"foretrace._scan.Scanner", sizeof(ScannerObject), 0, Py_TPFLAGS_DEFAULT, scanner_slots};

// --- memory snapshots -------------------------------------------------------------------------------------------------

struct SnapshotObject {
  PyObject_HEAD
  snapshots::PickleMachine* machine;
  snapshots::SnapshotFault* fault;
};

// Runs `work` without the GIL and keeps why the file is refused; false with an exception set.
template <class Work>
bool refusable(SnapshotObject* object, Work work) {
  return unlocked([&] {
    if (object->fault) return;
    try {
      work();
    } catch (const snapshots::SnapshotFault& fault) {
      object->fault = new snapshots::SnapshotFault(fault);
    }
  });
}

PyObject* snapshot_new(PyTypeObject* type, PyObject* args, PyObject*) {
  if (!PyArg_ParseTuple(args, "")) return nullptr;
  auto allocate = reinterpret_cast<allocfunc>(PyType_GetSlot(type, Py_tp_alloc));
  PyObject* self = allocate(type, 0);
  if (!self) return nullptr;
  auto* object = reinterpret_cast<SnapshotObject*>(self);
  if (!unlocked([&] { object->machine = new snapshots::PickleMachine(); })) {
    Py_DECREF(self);
    return nullptr;
  }
  return self;
}

void snapshot_dealloc(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  delete reinterpret_cast<SnapshotObject*>(self)->machine;
  delete reinterpret_cast<SnapshotObject*>(self)->fault;
  auto release = reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free));
  release(self);
  Py_DECREF(type);
}

SnapshotObject* snapshot_of(PyObject* self) {
  auto* object = reinterpret_cast<SnapshotObject*>(self);
  if (!object->machine) PyErr_SetString(PyExc_ValueError, "this scanner was finished");
  return object->machine ? object : nullptr;
}

PyObject* snapshot_push(PyObject* self, PyObject* data) {
  SnapshotObject* object = snapshot_of(self);
  if (!object) return nullptr;
  Py_buffer view;
  if (PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)) return nullptr;
  const bool done =
      refusable(object, [&] { object->machine->push(static_cast<const char*>(view.buf), size_t(view.len)); });
  PyBuffer_Release(&view);
  if (!done) return nullptr;
  return PyBool_FromLong(!object->fault && !object->machine->stopped());
}

PyObject* unicode_of(const Texts& texts, size_t code) {
  return PyUnicode_DecodeUTF8(texts.text(code) + 1, Py_ssize_t(texts.length(code)) - 1, "surrogateescape");
}

// A setting as plain Python; null without an exception where there are more than settings.
PyObject* setting_of(const snapshots::Records& records, snapshots::Value value, int depth, int& left) {
  using snapshots::Tag;
  if (--left < 0 || depth > 20) return nullptr;
  switch (snapshots::tag_of(value)) {
    case Tag::kTrue: Py_RETURN_TRUE;
    case Tag::kFalse: Py_RETURN_FALSE;
    case Tag::kText: return unicode_of(records.texts, size_t(snapshots::payload_of(value)));
    case Tag::kInteger:
    case Tag::kSigned: return PyLong_FromLongLong(records.signed_of(value));
    case Tag::kUnsigned: return PyLong_FromUnsignedLongLong(records.unsigned_of(value));
    case Tag::kReal: return PyFloat_FromDouble(records.real_of(value));
    case Tag::kHuge:
    case Tag::kHugeNegative: return PyUnicode_FromString("a number of more than 64 bits");
    case Tag::kNode: break;
    default: Py_RETURN_NONE;
  }
  const snapshots::Kind kind = records.kind(value);
  if (kind == snapshots::Kind::kPair) {
    PyObject* text = unicode_of(records.texts, size_t(records.row(value)));
    PyObject* parts = text ? PyObject_CallMethod(text, "split", "s", ",") : nullptr;
    Py_XDECREF(text);
    PyObject* pair = parts ? Py_BuildValue("(O)", parts) : nullptr;  // told from a list: Python makes numbers of it
    Py_XDECREF(parts);
    return pair;
  }
  const size_t count = kind == snapshots::Kind::kList || kind == snapshots::Kind::kDict ? records.count(value) : 0;
  const snapshots::Value* items = count ? records.items(value) : nullptr;
  if (kind == snapshots::Kind::kList) {
    PyObject* list = PyList_New(0);
    for (size_t i = 0; list && i < count; ++i) {
      if (!append(list, setting_of(records, items[i], depth + 1, left))) Py_CLEAR(list);
    }
    return list;
  }
  if (kind != snapshots::Kind::kDict) return PyUnicode_FromString(records.told(value));
  std::vector<std::pair<uint64_t, snapshots::Value>> members;  // of a key that comes twice, the last value
  std::unordered_map<uint64_t, size_t> places;
  for (size_t i = 0; i < count; i += 2) {
    if (snapshots::tag_of(items[i]) != Tag::kText) continue;
    const auto known = places.emplace(items[i], members.size());
    if (known.second) members.emplace_back(snapshots::payload_of(items[i]), items[i + 1]);
    members[known.first->second].second = items[i + 1];
  }
  PyObject* dict = PyDict_New();
  for (size_t i = 0; dict && i < members.size(); ++i) {
    PyObject* key = unicode_of(records.texts, size_t(members[i].first));
    PyObject* item = key ? setting_of(records, members[i].second, depth + 1, left) : nullptr;
    if (!item || PyDict_SetItem(dict, key, item)) Py_CLEAR(dict);
    Py_XDECREF(key);
    Py_XDECREF(item);
  }
  return dict;
}

PyObject* plain_texts(const Texts& texts) {
  PyObject* list = PyList_New(0);
  for (size_t i = 0; list && i < texts.size(); ++i) {
    if (!append(list, PyBytes_FromStringAndSize(texts.text(i) + 1, Py_ssize_t(texts.length(i)) - 1))) Py_CLEAR(list);
  }
  return list;
}

bool put_snapshot(PyObject* groups, snapshots::Records& r) {
  PyObject* g = new_group(groups, "segments");
  if (!g || !put(g, "device", r.segments.device) || !put(g, "address", r.segments.address) ||
      !put(g, "total", r.segments.total) || !put(g, "allocated", r.segments.allocated) ||
      !put(g, "active", r.segments.active) || !put(g, "requested", r.segments.requested) ||
      !put(g, "stream", r.segments.stream) || !put(g, "kind", r.segments.kind) || !put(g, "pool", r.segments.pool) ||
      !put(g, "expandable", r.segments.expandable) || !put(g, "stack", r.segments.stack)) {
    return false;
  }
  g = new_group(groups, "blocks");
  if (!g || !put(g, "address", r.blocks.address) || !put(g, "size", r.blocks.size) ||
      !put(g, "requested", r.blocks.requested) || !put(g, "state", r.blocks.state) || !put(g, "stack", r.blocks.stack)) {
    return false;
  }
  g = new_group(groups, "events");
  if (!g || !put(g, "action", r.events.action) || !put(g, "address", r.events.address) ||
      !put(g, "size", r.events.size) || !put(g, "stream", r.events.stream) || !put(g, "pool", r.events.pool) ||
      !put(g, "time", r.events.time) || !put(g, "stack", r.events.stack) || !put(g, "context", r.events.context) ||
      !put(g, "note", r.events.note)) {
    return false;
  }
  g = new_group(groups, "annotations");
  if (!g || !put(g, "device", r.annotations.device) || !put(g, "stage", r.annotations.stage) ||
      !put(g, "name", r.annotations.name) || !put(g, "time", r.annotations.time)) {
    return false;
  }
  g = new_group(groups, "frames");
  if (!g || !put(g, "file", r.frames.file) || !put(g, "line", r.frames.line) || !put(g, "name", r.frames.name)) return false;
  g = new_group(groups, "stacks");
  if (!g || !put(g, "end", r.stack_end)) return false;
  g = new_group(groups, "stack_frames");
  if (!g || !put(g, "frame", r.stack_frame)) return false;
  g = new_group(groups, "segment_rows");
  if (!g || !put(g, "row", r.segment_rows.row) || !put(g, "host", r.segment_rows.host)) return false;
  g = new_group(groups, "block_rows");
  if (!g || !put(g, "row", r.block_rows.row) || !put(g, "segment", r.block_rows.segment)) return false;
  g = new_group(groups, "event_rows");
  if (!g || !put(g, "row", r.event_rows.row) || !put(g, "device", r.event_rows.device)) return false;
  g = new_group(groups, "annotation_rows");
  return g && put(g, "row", r.annotation_rows.row);
}

// The columns, or why and at which byte the file is refused.
PyObject* snapshot_finish(PyObject* self, PyObject*) {
  SnapshotObject* object = snapshot_of(self);
  if (!object) return nullptr;
  snapshots::PickleMachine* machine = object->machine;
  if (!refusable(object, [&] {
        machine->finish();
        machine->records.walk(machine->root(), machine->at());
      })) {
    return nullptr;
  }
  PyObject* settings = nullptr;
  if (!object->fault) {
    int left = 10000;
    settings = setting_of(machine->records, machine->records.settings, 0, left);
    if (!settings && PyErr_Occurred()) return nullptr;
    if (!settings) {
      object->fault = new snapshots::SnapshotFault("allocator_settings holds more than settings", machine->at());
    }
  }
  if (object->fault) {
    return Py_BuildValue("(s#K)", object->fault->says.data(), Py_ssize_t(object->fault->says.size()),
                         (unsigned long long)object->fault->at);
  }
  PyObject* result = PyDict_New();
  PyObject* groups = PyDict_New();
  bool done = result && set(result, "settings", settings) && groups && put_snapshot(groups, machine->records);
  done = done && set(result, "texts", plain_texts(machine->records.texts)) &&
         set(result, "bare_list", PyBool_FromLong(machine->records.bare_list));
  if (result && groups) {
    done = set(result, "groups", groups) && done;
  } else {
    Py_XDECREF(groups);
  }
  delete machine;
  object->machine = nullptr;
  if (!done) Py_CLEAR(result);
  return result;
}

PyMethodDef snapshot_methods[] = {
    {"push", snapshot_push, METH_O, "Reads more bytes; whether there can be more."},
    {"finish", snapshot_finish, METH_NOARGS, "The columns, or why and at which byte the file is refused."},
    {nullptr, nullptr, 0, nullptr}};
PyType_Slot snapshot_slots[] = {{Py_tp_new, reinterpret_cast<void*>(snapshot_new)},
                                {Py_tp_dealloc, reinterpret_cast<void*>(snapshot_dealloc)},
                                {Py_tp_methods, snapshot_methods},
                                {Py_tp_doc, const_cast<char*>("Reads a memory snapshot without running its pickle.")},
                                {0, nullptr}};
PyType_Spec snapshot_spec = {"foretrace._scan.SnapshotScanner", sizeof(SnapshotObject), 0, Py_TPFLAGS_DEFAULT,
                             snapshot_slots};

// --- tables of SQLite files -------------------------------------------------------------------------------------------

PyObject* bytes_of(const std::vector<int64_t>& values) {
  return PyBytes_FromStringAndSize(reinterpret_cast<const char*>(values.data()), Py_ssize_t(values.size() * 8));
}

struct TableObject {
  PyObject_HEAD
  TableScan* scan;
};

bool columns_in(PyObject* listed, std::vector<int32_t>& columns) {
  const Py_ssize_t count = PySequence_Size(listed);
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* item = PySequence_GetItem(listed, i);
    const long column = item ? PyLong_AsLong(item) : -1;
    Py_XDECREF(item);
    if (column < 0 || column > 4000) {
      if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "no such column");
      return false;
    }
    columns.push_back(int32_t(column));
  }
  return count >= 0;
}

// Runs `work` without the GIL; a damaged file becomes a ValueError.
template <class Work>
bool readable(Work work) {
  std::string fault;
  const bool done = unlocked([&] {
    try {
      work();
    } catch (const SqliteFault& error) {
      fault = error.what();
    }
  });
  if (done && !fault.empty()) PyErr_SetString(PyExc_ValueError, fault.c_str());
  return done && fault.empty();
}

PyObject* table_new(PyTypeObject* type, PyObject* args, PyObject*) {
  int file;
  unsigned int page_bytes, reserved, root;
  unsigned long long file_bytes;
  PyObject *ints, *texts;
  if (!PyArg_ParseTuple(args, "iIIKIOO", &file, &page_bytes, &reserved, &file_bytes, &root, &ints, &texts)) return nullptr;
  std::vector<int32_t> int_columns, text_columns;
  if (!columns_in(ints, int_columns) || !columns_in(texts, text_columns)) return nullptr;
  auto allocate = reinterpret_cast<allocfunc>(PyType_GetSlot(type, Py_tp_alloc));
  PyObject* self = allocate(type, 0);
  if (!self) return nullptr;
  auto* object = reinterpret_cast<TableObject*>(self);
  if (!readable([&] {
        object->scan = new TableScan(file, page_bytes, reserved, file_bytes, root, int_columns, text_columns);
      })) {
    Py_DECREF(self);
    return nullptr;
  }
  return self;
}

void table_dealloc(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  delete reinterpret_cast<TableObject*>(self)->scan;
  auto release = reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free));
  release(self);
  Py_DECREF(type);
}

PyObject* table_read(PyObject* self, PyObject* args) {
  Py_ssize_t rows;
  if (!PyArg_ParseTuple(args, "n", &rows)) return nullptr;
  TableScan* scan = reinterpret_cast<TableObject*>(self)->scan;
  bool more = false;
  if (!readable([&] { more = scan->read(size_t(rows)); })) return nullptr;
  if (!more) Py_RETURN_NONE;
  PyObject* ints = PyList_New(0);
  PyObject* texts = PyList_New(0);
  bool done = ints && texts;
  for (size_t i = 0; done && i < scan->ints().size(); ++i) {
    PyObject* column = bytes_of(scan->ints()[i]);
    done = column && !PyList_Append(ints, column);
    Py_XDECREF(column);
  }
  for (size_t i = 0; done && i < scan->texts().size(); ++i) {
    const std::string& text = scan->texts()[i];
    PyObject* column = PyBytes_FromStringAndSize(text.data(), Py_ssize_t(text.size()));
    done = column && !PyList_Append(texts, column);
    Py_XDECREF(column);
  }
  if (!done) {
    Py_XDECREF(ints);
    Py_XDECREF(texts);
    return nullptr;
  }
  return Py_BuildValue("(NN)", ints, texts);
}

PyMethodDef table_methods[] = {
    {"read", table_read, METH_VARARGS, "Columns of the next rows, about so many; None where there are none."},
    {nullptr, nullptr, 0, nullptr}};
PyType_Slot table_slots[] = {{Py_tp_new, reinterpret_cast<void*>(table_new)},
                             {Py_tp_dealloc, reinterpret_cast<void*>(table_dealloc)},
                             {Py_tp_methods, table_methods},
                             {Py_tp_doc, const_cast<char*>("Reads columns of one table of an SQLite file.")},
                             {0, nullptr}};
PyType_Spec table_spec = {"foretrace._scan.TableScanner", sizeof(TableObject), 0, Py_TPFLAGS_DEFAULT, table_slots};

// --- replay ---------------------------------------------------------------------------------------------------------

// Views of the arrays that Python hands over, let go together.
class Buffers {
 public:
  ~Buffers() {
    for (Py_buffer& view : views_) PyBuffer_Release(&view);
  }
  template <class T>
  const T* take(PyObject* object, size_t& count) {
    Py_buffer view;
    if (PyObject_GetBuffer(object, &view, PyBUF_SIMPLE)) return nullptr;
    views_.push_back(view);
    count = size_t(view.len) / sizeof(T);
    static const T kNothing{};
    return count ? static_cast<const T*>(view.buf) : &kNothing;
  }

 private:
  std::vector<Py_buffer> views_;
};

PyObject* replay(PyObject*, PyObject* args) {
  PyObject* object[15];
  long long tail, queue, tiles;
  if (!PyArg_ParseTuple(args, "OOOOOOOOOOOOOOOLLL", &object[0], &object[1], &object[2], &object[3], &object[4],
                        &object[5], &object[6], &object[7], &object[8], &object[9], &object[10], &object[11],
                        &object[12], &object[13], &object[14], &tail, &queue, &tiles)) {
    return nullptr;
  }
  Buffers buffers;
  ReplayInput in;
  size_t base, kind, stream, wake, bounds, task_stream, task_dur, task_latency, task_gap, after, after_ns;
  if (!(in.gap = buffers.take<int64_t>(object[0], in.calls)) || !(in.base = buffers.take<int64_t>(object[1], base)) ||
      !(in.kind = buffers.take<uint8_t>(object[2], kind)) || !(in.stream = buffers.take<int32_t>(object[3], stream)) ||
      !(in.wake = buffers.take<int64_t>(object[4], wake)) ||
      !(in.task_from = buffers.take<int32_t>(object[5], bounds)) ||
      !(in.task_stream = buffers.take<int32_t>(object[6], task_stream)) ||
      !(in.task_dur = buffers.take<int64_t>(object[7], task_dur)) ||
      !(in.task_latency = buffers.take<int64_t>(object[8], task_latency)) ||
      !(in.task_gap = buffers.take<int64_t>(object[9], task_gap)) ||
      !(in.task_after = buffers.take<int32_t>(object[10], after)) ||
      !(in.task_after_ns = buffers.take<int64_t>(object[11], after_ns)) ||
      !(in.stream_free = buffers.take<int64_t>(object[12], in.streams)) ||
      !(in.pending_ends = buffers.take<int64_t>(object[13], in.pending)) ||
      !(in.step_calls = buffers.take<int32_t>(object[14], in.steps))) {
    return nullptr;
  }
  // Python builds these arrays: a mismatch is a fault there, and must not become a read past an end here.
  bool sound = base == in.calls && kind == in.calls && stream == in.calls && wake == in.calls &&
               bounds == in.calls + 1 && in.task_from[0] == 0 && task_dur == task_stream &&
               task_latency == task_stream && task_gap == task_stream && after == task_stream &&
               after_ns == task_stream && queue > 0 && tiles > 0 && in.streams > 0 &&
               size_t(in.task_from[in.calls]) == task_stream;
  for (size_t i = 0; sound && i < in.calls; ++i) {
    sound = in.task_from[i] <= in.task_from[i + 1] && in.stream[i] < int32_t(in.streams) &&
            (in.stream[i] >= 0 || in.kind[i] < kCallRecord);
  }
  for (size_t i = 0; sound && i < task_stream; ++i) {
    sound = in.task_stream[i] >= 0 && in.task_stream[i] < int32_t(in.streams) && in.task_after[i] < int64_t(i);
  }
  if (!sound) {
    PyErr_SetString(PyExc_ValueError, "the arrays of the program do not fit together");
    return nullptr;
  }
  in.tail_gap = tail;
  in.queue_calls = queue;
  in.tiles = tiles;
  ReplayOutput out;
  if (!unlocked([&] { run_replay(in, out); })) return nullptr;
  return Py_BuildValue("(NNNNNLL)", bytes_of(out.call_end), bytes_of(out.task_start), bytes_of(out.task_end),
                       bytes_of(out.step_host), bytes_of(out.step_device), (long long)out.host, (long long)out.device);
}

// --- nesting ----------------------------------------------------------------------------------------------------------

struct NesterObject {
  PyObject_HEAD
  Nester* nester;
};

PyObject* nester_new(PyTypeObject* type, PyObject* args, PyObject*) {
  if (!PyArg_ParseTuple(args, "")) return nullptr;
  auto allocate = reinterpret_cast<allocfunc>(PyType_GetSlot(type, Py_tp_alloc));
  PyObject* self = allocate(type, 0);
  if (!self) return nullptr;
  if (!unlocked([&] { reinterpret_cast<NesterObject*>(self)->nester = new Nester(); })) {
    Py_DECREF(self);
    return nullptr;
  }
  return self;
}

void nester_dealloc(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  delete reinterpret_cast<NesterObject*>(self)->nester;
  auto release = reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free));
  release(self);
  Py_DECREF(type);
}

template <class T>
PyObject* array_of(Column<T>& column) {
  const size_t bytes = column.size() * sizeof(T);
  return array_of(column.take(), bytes);
}

PyObject* nester_add(PyObject* self, PyObject* args) {
  PyObject* object[4];
  if (!PyArg_ParseTuple(args, "OOOO", &object[0], &object[1], &object[2], &object[3])) return nullptr;
  Nester* nester = reinterpret_cast<NesterObject*>(self)->nester;
  Buffers buffers;
  size_t tracks, starts, durations, roles;
  const auto* track = buffers.take<uint32_t>(object[0], tracks);
  const auto* start = track ? buffers.take<int64_t>(object[1], starts) : nullptr;
  const auto* dur = start ? buffers.take<int64_t>(object[2], durations) : nullptr;
  const auto* role = dur ? buffers.take<uint8_t>(object[3], roles) : nullptr;
  if (!role) return nullptr;
  bool sound =
      starts == tracks && durations == tracks && roles == tracks && tracks < kNullU32 && nester->rows() + tracks < kNullU32;
  for (size_t i = 0; sound && i < tracks; ++i) sound = track[i] < (1u << 24);
  if (!sound) {
    PyErr_SetString(PyExc_ValueError, "the columns of the spans do not fit together");
    return nullptr;
  }
  Nesting out;
  if (!unlocked([&] { nester->add(track, start, dur, role, tracks, out); })) return nullptr;
  return Py_BuildValue("(NNN)", array_of(out.depth), array_of(out.parent), array_of(out.chosen));
}

PyMethodDef nester_methods[] = {
    {"add", nester_add, METH_VARARGS, "Depth, parent and chosen row around of the next rows; see ingest/nesting.py."},
    {nullptr, nullptr, 0, nullptr}};
PyType_Slot nester_slots[] = {{Py_tp_new, reinterpret_cast<void*>(nester_new)},
                              {Py_tp_dealloc, reinterpret_cast<void*>(nester_dealloc)},
                              {Py_tp_methods, nester_methods},
                              {Py_tp_doc, const_cast<char*>("Nests rows in order of start, block after block.")},
                              {0, nullptr}};
PyType_Spec nester_spec = {"foretrace._scan.Nester", sizeof(NesterObject), 0, Py_TPFLAGS_DEFAULT, nester_slots};

// --- columns that Arrow's readers take over without a copy --------------------------------------------------------------

struct ArrowObject {
  PyObject_HEAD
  Py_buffer values, valid;  // of the second only where `obj` is set: a bit for each value, 0 for a null
  const ArrowType* type;
  int64_t null_count;
};

PyObject* arrow_new(PyTypeObject* type, PyObject* args, PyObject*) {
  const char* wanted;
  PyObject *values, *valid;
  long long null_count;
  if (!PyArg_ParseTuple(args, "sOOL", &wanted, &values, &valid, &null_count)) return nullptr;
  const ArrowType* found = nullptr;
  for (const ArrowType& each : kArrowTypes) found = std::strcmp(each.numpy, wanted) ? found : &each;
  if (!found) {
    PyErr_SetString(PyExc_ValueError, "no such type of numbers");
    return nullptr;
  }
  auto allocate = reinterpret_cast<allocfunc>(PyType_GetSlot(type, Py_tp_alloc));
  PyObject* self = allocate(type, 0);  // all zeros
  if (!self) return nullptr;
  auto* object = reinterpret_cast<ArrowObject*>(self);
  object->type = found;
  object->null_count = null_count;
  bool sound = !PyObject_GetBuffer(values, &object->values, PyBUF_SIMPLE) &&
               (valid == Py_None || !PyObject_GetBuffer(valid, &object->valid, PyBUF_SIMPLE));
  if (sound) {
    const int64_t count = object->values.len / found->bytes;
    sound = object->values.len % found->bytes == 0 && null_count >= 0 && null_count <= count &&
            (valid == Py_None ? null_count == 0 : object->valid.len >= (count + 7) / 8);
    if (!sound) PyErr_SetString(PyExc_ValueError, "the buffers of the column do not fit together");
  }
  if (!sound) {
    Py_DECREF(self);
    return nullptr;
  }
  return self;
}

void arrow_dealloc(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  auto* object = reinterpret_cast<ArrowObject*>(self);
  if (object->values.obj) PyBuffer_Release(&object->values);
  if (object->valid.obj) PyBuffer_Release(&object->valid);
  auto release = reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free));
  release(self);
  Py_DECREF(type);
}

struct Lent {
  PyObject* column;
  const void* buffers[2];
};

void give_back_array(ArrowArray* array) {
  auto* lent = static_cast<Lent*>(array->private_data);
  array->release = nullptr;
  if (!Py_IsInitialized()) return;  // at the end of the process there is nobody left to give it back to
  const PyGILState_STATE state = PyGILState_Ensure();
  Py_DECREF(lent->column);
  PyGILState_Release(state);
  delete lent;
}

PyObject* arrow_lend(PyObject* self, PyObject* args) {
  PyObject* requested = nullptr;  // another type may be wished for, and need not be given
  if (!PyArg_ParseTuple(args, "|O", &requested)) return nullptr;
  auto* object = reinterpret_cast<ArrowObject*>(self);
  auto* schema = new ArrowSchema{object->type->format, "", nullptr, kArrowNullable, 0, nullptr, nullptr, give_back_schema, nullptr};
  PyObject* first = PyCapsule_New(schema, "arrow_schema", free_capsule<ArrowSchema>);
  if (!first) {
    delete schema;
    return nullptr;
  }
  Py_INCREF(self);
  auto* lent = new Lent{self, {object->valid.obj ? object->valid.buf : nullptr, object->values.buf}};
  auto* array = new ArrowArray{object->values.len / object->type->bytes, object->null_count, 0, 2, 0, lent->buffers, nullptr,
                               nullptr, give_back_array, lent};
  PyObject* second = PyCapsule_New(array, "arrow_array", free_capsule<ArrowArray>);
  if (!second) {
    give_back_array(array);
    delete array;
    Py_DECREF(first);
    return nullptr;
  }
  return Py_BuildValue("(NN)", first, second);
}

PyMethodDef arrow_methods[] = {{"__arrow_c_array__", arrow_lend, METH_VARARGS, "The column as Arrow's readers take it."},
                               {nullptr, nullptr, 0, nullptr}};
PyType_Slot arrow_slots[] = {{Py_tp_new, reinterpret_cast<void*>(arrow_new)},
                             {Py_tp_dealloc, reinterpret_cast<void*>(arrow_dealloc)},
                             {Py_tp_methods, arrow_methods},
                             {Py_tp_doc, const_cast<char*>("A column of numbers that lies in memory of Python's.")},
                             {0, nullptr}};
PyType_Spec arrow_spec = {"foretrace._scan.ArrowColumn", sizeof(ArrowObject), 0, Py_TPFLAGS_DEFAULT, arrow_slots};

// --- the line sampler: see capture/line_sampler.py --------------------------------------------------------------------------

#ifdef FORETRACE_LINES
LineSampler* line_sampler = nullptr;  // never destroyed: its thread may outlive what ends a process, and children of forks copy it

bool line_reader(PyObject* code_type, std::unique_ptr<FrameReader>& out) {
  FrameLayout layout;
  std::string why;
  if (!find_layout(int(Py_Version >> 16 & 0xff), layout, why)) {
    PyErr_SetString(PyExc_RuntimeError, why.c_str());
    return false;
  }
  out = std::make_unique<FrameReader>(layout, PyInterpreterState_Get(), code_type);
  return true;
}

PyObject* text_of(const std::u32string& text) {
  const uint16_t one = 1;
  int order = *reinterpret_cast<const uint8_t*>(&one) ? -1 : 1;
  return PyUnicode_DecodeUTF32(reinterpret_cast<const char*>(text.data()), Py_ssize_t(text.size() * 4), "surrogatepass", &order);
}

PyObject* lines_now(PyObject*, PyObject* code_type) {
  std::unique_ptr<FrameReader> reader;
  if (!line_reader(code_type, reader)) return nullptr;
  const auto* const own = reinterpret_cast<const char*>(PyThreadState_Get());
  std::vector<FrameReader::Frame> frames;
  const char* next = nullptr;
  uint64_t id = 0;
  errno = 0;
  if (!reader->look(own, next, id) || !reader->walk(own, frames)) {
    const std::string why = errno ? std::strerror(errno) : "the frames change while they are read";
    PyErr_SetString(PyExc_RuntimeError, ("its frames cannot be read: " + why).c_str());
    return nullptr;
  }
  bool is_listed = false;
  for (const char* thread = reader->first_thread(); thread && !is_listed && reader->look(thread, next, id); thread = next) {
    is_listed = thread == own && id == uint64_t(syscall(SYS_gettid));
  }
  PyObject* list = PyList_New(0);
  for (const auto& frame : frames) {
    const auto* code = reader->code_at(frame.code, 0);
    const int64_t unit = code ? reader->unit_of(frame, *code) : -1;
    const Position position = unit < 0 ? Position{} : position_of(code->table, code->first_line, unit);
    PyObject* row = !list ? nullptr
                    : unit < 0 ? Py_BuildValue("(OOii)", Py_None, Py_None, 0, 0)
                               : Py_BuildValue("(NNii)", text_of(code->file), text_of(code->function), position.line, position.column);
    const bool added = row && !PyList_Append(list, row);
    Py_XDECREF(row);
    if (!added) {
      Py_XDECREF(list);
      return nullptr;
    }
  }
  return Py_BuildValue("(NNN)", list, PyBool_FromLong(reader->holder() == own), PyBool_FromLong(is_listed));
}

PyObject* lines_start(PyObject*, PyObject* args) {
  PyObject* code_type;
  const char *path, *header;
  long long period, write;
  double most_cost;
  if (!PyArg_ParseTuple(args, "OssLLd", &code_type, &path, &header, &period, &write, &most_cost)) return nullptr;
  if (line_sampler) {
    PyErr_SetString(PyExc_RuntimeError, "a line sampler runs already");
    return nullptr;
  }
  std::unique_ptr<FrameReader> reader;
  if (!line_reader(code_type, reader)) return nullptr;
  try {
    auto* sampler = new LineSampler(*reader, {path, header, period, write, most_cost});
    sampler->start();
    line_sampler = sampler;
  } catch (const std::exception& error) {  // no thread can be started
    PyErr_SetString(PyExc_RuntimeError, error.what());
    return nullptr;
  }
  Py_RETURN_NONE;
}

// Returns what `lines_facts` said last.
PyObject* lines_stop(PyObject*, PyObject*) {
  if (!line_sampler) Py_RETURN_NONE;
  LineSampler* sampler = line_sampler;
  line_sampler = nullptr;
  Py_BEGIN_ALLOW_THREADS sampler->stop();
  Py_END_ALLOW_THREADS
  const std::string facts = sampler->facts();
  delete sampler;
  return PyUnicode_FromStringAndSize(facts.data(), Py_ssize_t(facts.size()));
}

PyObject* lines_facts(PyObject*, PyObject*) {
  if (!line_sampler) Py_RETURN_NONE;
  const std::string facts = line_sampler->facts();
  return PyUnicode_FromStringAndSize(facts.data(), Py_ssize_t(facts.size()));
}

PyObject* lines_hold(PyObject*, PyObject*) {
  if (line_sampler) line_sampler->hold();
  Py_RETURN_NONE;
}

PyObject* lines_let_go(PyObject*, PyObject*) {
  if (line_sampler) line_sampler->let_go();
  Py_RETURN_NONE;
}

PyObject* lines_forget(PyObject*, PyObject*) {
  line_sampler = nullptr;
  Py_RETURN_NONE;
}
#endif

PyMethodDef module_methods[] = {{"replay", replay, METH_VARARGS, "Runs a program; see predict/replay.py."},
#ifdef FORETRACE_LINES
                                {"lines_now", lines_now, METH_O, "The caller's stack as the sampler reads it, whether it holds the GIL and is listed."},
                                {"lines_start", lines_start, METH_VARARGS, "Starts the sampler's thread."},
                                {"lines_stop", lines_stop, METH_NOARGS, "Ends it, and writes what is left."},
                                {"lines_facts", lines_facts, METH_NOARGS, "Its counts so far, as JSON."},
                                {"lines_hold", lines_hold, METH_NOARGS, "Before a fork: what the child copies is whole."},
                                {"lines_let_go", lines_let_go, METH_NOARGS, "After a fork, in the parent."},
                                {"lines_forget", lines_forget, METH_NOARGS, "After a fork, in the child, where the thread is not."},
#endif
                                {nullptr, nullptr, 0, nullptr}};

int module_exec(PyObject* module) {
  array_type = PyType_FromSpec(&array_spec);
  if (!array_type) return -1;
  const std::pair<const char*, PyType_Spec*> types[] = {{"Scanner", &scanner_spec}, {"SnapshotScanner", &snapshot_spec},
                                                        {"TableScanner", &table_spec}, {"Nester", &nester_spec},
                                                        {"ArrowColumn", &arrow_spec}};
  for (const auto& [name, spec] : types) {
    PyObject* type = PyType_FromSpec(spec);
    const bool added = type && !PyModule_AddObjectRef(module, name, type);
    Py_XDECREF(type);
    if (!added) return -1;
  }
  return 0;
}

PyModuleDef_Slot module_slots[] = {{Py_mod_exec, reinterpret_cast<void*>(module_exec)}, {0, nullptr}};
PyModuleDef module_definition = {PyModuleDef_HEAD_INIT, "foretrace._scan",
                                 "The C++ readers of Kineto traces, of memory snapshots and of SQLite tables, nesting, and the replay loop.", 0, module_methods,
                                 module_slots,
                                 nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit__scan() { return PyModuleDef_Init(&module_definition); }
