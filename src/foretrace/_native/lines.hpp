// The line sampler: a thread that takes no GIL and reads the frames of all Python threads of its own process.
//
// It wakes at random intervals and copies frames with process_vm_readv from this very process: a bad address is an error code
// there, never a crash. No Python object is created, changed or referenced; nothing is stopped or signalled. What it sees goes to
// a file as lines of JSON, once a second: a process may end without notice. Linux only.
#pragma once

#if defined(__linux__) && defined(__LP64__)
#define FORETRACE_LINES 1

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

namespace foretrace {

// Where CPython keeps what is read: offsets in bytes. 3.11 and 3.12: from their headers; 3.13 and later tell them themselves.
struct FrameLayout {
  size_t threads_head;                                       // in the interpreter
  size_t thread_next, thread_id, thread_frame, thread_chunk;  // in a thread's state; behind the chunk stands its top
  bool frame_is_behind_cframe;                               // the current frame is a field of another structure
  size_t cframe_frame;
  size_t frame_code, frame_previous, frame_instruction, frame_owner, frame_bytes;
  size_t code_file, code_name, code_lines, code_first, code_units;
  size_t ascii_bytes, compact_bytes;  // before the characters of a str
  int kind_shift;                     // of a str's state
  size_t interpreter_gil;             // a pointer to the lock; 3.11 has one lock for all in _PyRuntime
  size_t runtime_gil, gil_holder, gil_locked;
};

constexpr size_t kVarSize = 16, kStrLength = 16, kStrState = 32, kBytesData = 32, kType = 8;
constexpr uint8_t kOwnedByC = 3;  // and above: frames that hold no Python code

inline bool peek(const void* from, void* to, size_t size) {
  iovec here{to, size}, there{const_cast<void*>(from), size};
  return process_vm_readv(getpid(), &here, 1, &there, 1, 0) == ssize_t(size);
}
inline const char* at(const void* base, size_t offset) { return static_cast<const char*>(base) + offset; }
template <class T>
T field(const char* copy, size_t offset) {
  T value;
  std::memcpy(&value, copy + offset, sizeof value);
  return value;
}

// The layout of this Python, or why there is none.
inline bool find_layout(int minor, FrameLayout& out, std::string& why) {
  const char* runtime = static_cast<const char*>(dlsym(RTLD_DEFAULT, "_PyRuntime"));
  if (!runtime) {
    why = "this Python does not export its runtime";
    return false;
  }
  if (minor == 11) {
    out = {16, 8, 160, 56, 296, true, 8, 32, 48, 56, 69, 72, 112, 128, 136, 72, 184, 48, 72, 2, 0, 360, 8, 16};
    return true;
  }
  if (minor == 12) {
    out = {72, 8, 144, 56, 232, true, 0, 0, 8, 56, 70, 72, 112, 128, 136, 68, 192, 40, 56, 2, 384, 0, 8, 16};
    return true;
  }
  // _Py_DebugOffsets: numbers of 64 bits behind a cookie, the version and whether the build is free-threaded.
  uint64_t told[64];
  if (!peek(runtime, told, sizeof told) || std::memcmp(told, "xdebugpy", 8) != 0) {
    why = "this Python does not say where its frames are";
    return false;
  }
  if (told[2]) {
    why = "this Python is free-threaded";
    return false;
  }
  if (minor != 13 && minor != 14) {
    why = "frames of Python 3." + std::to_string(minor) + " are not known";
    return false;
  }
  const bool later = minor == 14;
  const uint64_t* interpreter = told + 6;  // behind three numbers of the runtime
  const uint64_t* thread = interpreter + (later ? 16 : 13);
  const uint64_t* frame = thread + 9;
  const uint64_t* code = frame + (later ? 8 : 6);
  const uint64_t* gil = interpreter + (later ? 9 : 8);  // the pointer, the lock within the interpreter, and three of its fields
  out = {};
  out.threads_head = interpreter[3];
  out.thread_next = thread[2], out.thread_frame = thread[4], out.thread_id = thread[6], out.thread_chunk = thread[7];
  out.frame_previous = frame[1], out.frame_code = frame[2], out.frame_instruction = frame[3], out.frame_owner = frame[5];
  out.frame_bytes = frame[4];
  out.code_file = code[1], out.code_name = code[3], out.code_lines = code[4], out.code_first = code[5], out.code_units = code[9];
  out.ascii_bytes = 40, out.compact_bytes = 56, out.kind_shift = later ? 16 : 2;
  out.interpreter_gil = gil[0], out.gil_locked = gil[3] - gil[1], out.gil_holder = gil[4] - gil[1];
  const bool sound = out.threads_head && out.thread_chunk < 4096 && out.frame_bytes <= 256 && out.frame_owner < out.frame_bytes &&
                     out.thread_frame < 4096 && out.code_units <= 512 && out.gil_holder < 256 && out.gil_locked < 256;
  if (!sound) why = "this Python says nothing sound of its frames";
  return sound;
}

struct Position {
  int32_t line = 0, column = -1, end_column = -1;  // 0, -1: not known
};

// The position of a code unit in a location table (CPython 3.11 and later, Objects/locations.md).
inline Position position_of(const std::string& table, int32_t first_line, int64_t unit) {
  size_t next = 0;
  int32_t line = first_line;
  auto byte = [&]() -> unsigned { return next < table.size() ? static_cast<unsigned char>(table[next++]) : 0; };
  auto varint = [&] {
    unsigned value = 0, part;
    int shift = 0;
    do {
      part = byte();
      value |= (part & 63) << std::min(shift, 26);
      shift += 6;
    } while (part & 64);
    return value;
  };
  auto signed_varint = [&]() -> int32_t {
    const unsigned value = varint();
    return value & 1 ? -int32_t(value >> 1) : int32_t(value >> 1);
  };
  for (int64_t begin = 0; next < table.size();) {
    const unsigned head = byte();
    const unsigned kind = (head >> 3) & 15;
    Position here;
    if (kind == 14) {
      here.line = line += signed_varint();
      const unsigned more_lines = varint();
      here.column = int32_t(varint()) - 1;
      const int32_t end = int32_t(varint()) - 1;
      here.end_column = more_lines ? -1 : end;
    } else if (kind == 13) {
      here.line = line += signed_varint();
    } else if (kind >= 10 && kind < 13) {
      here.line = line += int32_t(kind) - 10;
      here.column = int32_t(byte());
      here.end_column = int32_t(byte());
    } else if (kind < 10) {
      const unsigned second = byte();
      here.line = line;
      here.column = int32_t(kind << 3 | second >> 4);
      here.end_column = here.column + int32_t(second & 15);
    }
    begin += (head & 7) + 1;
    if (unit < begin) return here;
  }
  return {};
}

inline std::string in_json(const std::u32string& text) {
  std::string out = "\"";
  char escaped[16];
  for (const char32_t point : text) {
    if (point == '"' || point == '\\') {
      out += '\\';
      out += char(point);
    } else if (point >= 32 && point < 127) {
      out += char(point);
    } else if (point < 0x10000) {
      std::snprintf(escaped, sizeof escaped, "\\u%04x", unsigned(point));
      out += escaped;
    } else {
      const unsigned rest = unsigned(point) - 0x10000;
      std::snprintf(escaped, sizeof escaped, "\\u%04x\\u%04x", 0xd800 + (rest >> 10), 0xdc00 + (rest & 0x3ff));
      out += escaped;
    }
  }
  return out + '"';
}

// Reads the frames of one process: its own.
class FrameReader {
 public:
  struct Frame {
    const char *code, *instruction, *address;
  };
  struct Code {
    int32_t id;
    const char *name, *lines;
    int32_t first_line;
    int64_t units;
    std::u32string file, function;
    std::string table;
    int64_t checked;
  };

  FrameReader(const FrameLayout& layout, const void* interpreter, const void* code_type)
      : layout_(layout), interpreter_(interpreter), code_type_(code_type), runtime_(dlsym(RTLD_DEFAULT, "_PyRuntime")) {
    thread_bytes_ = std::max({layout.thread_next, layout.thread_id, layout.thread_frame, layout.thread_chunk + 8}) + 8;
    if (!layout.interpreter_gil) {
      gil_ = at(runtime_, layout.runtime_gil);
    } else if (!peek(at(interpreter, layout.interpreter_gil), &gil_, sizeof gil_)) {
      gil_ = nullptr;
    }
    gil_bytes_ = std::max(layout.gil_holder + 8, layout.gil_locked + 4);
  }

  const char* first_thread() const {
    const char* thread = nullptr;
    return peek(at(interpreter_, layout_.threads_head), &thread, sizeof thread) ? thread : nullptr;
  }

  // The thread that holds the GIL; null where none does.
  const char* holder() const {
    char copy[264];
    if (!gil_ || !peek(gil_, copy, gil_bytes_)) return nullptr;
    return field<int>(copy, layout_.gil_locked) > 0 ? field<const char*>(copy, layout_.gil_holder) : nullptr;
  }

  // Copies a thread's state: the thread after it, and its number in the kernel.
  bool look(const char* thread, const char*& next, uint64_t& id) {
    if (!peek(thread, state_, thread_bytes_)) return false;
    next = field<const char*>(state_, layout_.thread_next);
    id = field<unsigned long>(state_, layout_.thread_id);
    return true;
  }

  // The frames of a thread, innermost first; `look` comes before. What is on top is read again at the end: the same frame, or one
  // that still is of the same code and caller. Else the read was torn: another core may have called and returned meanwhile.
  bool walk(const char* thread, std::vector<Frame>& frames) {
    frames.clear();
    const auto* holds_top = field<const char*>(state_, layout_.thread_frame);
    const char* top = holds_top;
    if (layout_.frame_is_behind_cframe && !peek(holds_top + layout_.cframe_frame, &top, sizeof top)) return false;
    const char* chunk = field<const char*>(state_, layout_.thread_chunk);
    const char* chunk_top = field<const char*>(state_, layout_.thread_chunk + 8);
    size_t copied = copy_chunk(chunk, chunk && chunk_top > chunk ? size_t(chunk_top - chunk) : 0);
    char single[256];
    const char* first_previous = nullptr;
    const char* address = top;
    for (size_t steps = 0; address && steps < kMostFrames; ++steps) {  // a torn chain may be a ring
      const auto within = [&] { return copied && address >= chunk && address + layout_.frame_bytes <= chunk + copied; };
      if (!within() && copied) {
        // Of a generator, which has its frame itself, or in the chunk before: this copy begins with its address.
        const auto* before = field<const char*>(chunk_.data(), 0);
        char head[24];
        if (before && address > before && address < before + kMostChunk && peek(before, head, sizeof head)) {
          const auto size = field<size_t>(head, 8);
          if (address < before + size) copied = copy_chunk(chunk = before, size);
        }
      }
      const char* frame = single;
      if (within()) {
        frame = chunk_.data() + (address - chunk);
      } else if (!peek(address, single, layout_.frame_bytes)) {
        return false;
      }
      // Up to 3.13 a plain pointer; later the lowest bits are a tag.
      const auto code = reinterpret_cast<const char*>(field<uintptr_t>(frame, layout_.frame_code) & ~uintptr_t(7));
      if (field<uint8_t>(frame, layout_.frame_owner) < kOwnedByC) {
        if (frames.empty()) first_previous = field<const char*>(frame, layout_.frame_previous);
        frames.push_back({code, field<const char*>(frame, layout_.frame_instruction), address});
      }
      address = field<const char*>(frame, layout_.frame_previous);
    }
    if (frames.empty()) return true;
    const char* again[2] = {nullptr, top};
    iovec here{again, layout_.frame_is_behind_cframe ? sizeof again : sizeof again[0]};
    iovec there[2] = {{const_cast<char*>(thread + layout_.thread_frame), sizeof again[0]},
                      {const_cast<char*>(holds_top + layout_.cframe_frame), sizeof again[0]}};
    const unsigned long pieces = layout_.frame_is_behind_cframe ? 2 : 1;
    const bool read = process_vm_readv(getpid(), &here, 1, there, pieces, 0) == ssize_t(here.iov_len);
    if (read && again[1] == top && (layout_.frame_is_behind_cframe || again[0] == top)) return true;
    const Frame& first = frames.front();
    char now[256];
    if (!peek(first.address, now, layout_.frame_bytes)) return false;
    const auto code = reinterpret_cast<const char*>(field<uintptr_t>(now, layout_.frame_code) & ~uintptr_t(7));
    return code == first.code && field<const char*>(now, layout_.frame_previous) == first_previous;
  }

  // What is known of a code object. An address is looked at again once a second, since another object may have taken it.
  const Code* code_at(const char* address, int64_t now_ns) {
    auto known = codes_.find(address);
    if (known != codes_.end() && now_ns - known->second.checked < kCheckEvery) return &known->second;
    char copy[512];
    if (!peek(address, copy, layout_.code_units) || field<const void*>(copy, kType) != code_type_) return nullptr;
    const auto name = field<const char*>(copy, layout_.code_name), lines = field<const char*>(copy, layout_.code_lines);
    const auto first = field<int32_t>(copy, layout_.code_first);
    if (known != codes_.end() && known->second.name == name && known->second.lines == lines && known->second.first_line == first) {
      known->second.checked = now_ns;
      return &known->second;
    }
    Code code{next_code_, name, lines, first, field<int64_t>(copy, kVarSize), {}, {}, {}, now_ns};
    char head[kBytesData];
    if (!text(field<const char*>(copy, layout_.code_file), code.file) || !text(name, code.function) || !peek(lines, head, sizeof head)) {
      return nullptr;
    }
    const auto size = field<int64_t>(head, kVarSize);
    if (size < 0 || size > kMostTable) return nullptr;
    code.table.resize(size_t(size));
    if (size && !peek(lines + kBytesData, &code.table[0], size_t(size))) return nullptr;
    ++next_code_;
    return &(codes_[address] = std::move(code));
  }

  // The code unit that a frame executes; below zero where the frame and its code do not fit together.
  int64_t unit_of(const Frame& frame, const Code& code) const {
    const int64_t bytes = frame.instruction - (frame.code + layout_.code_units);
    if (bytes == -2) return 0;  // not begun
    return bytes < 0 || bytes % 2 || bytes / 2 >= code.units ? -1 : bytes / 2;
  }

 private:
  static constexpr size_t kMostChunk = 1 << 20, kMostFrames = 2000;
  static constexpr int64_t kMostTable = 1 << 20, kCheckEvery = 1000000000;
  static constexpr int64_t kMostCharacters = 4096;

  size_t copy_chunk(const char* chunk, size_t size) {
    if (!size || size > kMostChunk) return 0;
    if (chunk_.size() < size) chunk_.resize(size);
    return peek(chunk, chunk_.data(), size) ? size : 0;
  }

  bool text(const char* object, std::u32string& out) const {
    char head[72];
    if (!object || !peek(object, head, layout_.compact_bytes)) return false;
    const auto length = field<int64_t>(head, kStrLength);
    const uint32_t state = field<uint32_t>(head, kStrState) >> layout_.kind_shift;
    const uint32_t kind = state & 7;
    const bool compact = state & 8, ascii = state & 16;
    if (!compact || length < 0 || length > kMostCharacters || (kind != 1 && kind != 2 && kind != 4)) return false;
    std::string raw(size_t(length) * kind, '\0');
    const size_t skip = ascii ? layout_.ascii_bytes : layout_.compact_bytes;
    if (!raw.empty() && !peek(object + skip, &raw[0], raw.size())) return false;
    out.clear();
    for (size_t i = 0; i < size_t(length); ++i) {
      uint32_t point = 0;
      std::memcpy(&point, raw.data() + i * kind, kind);
      out += char32_t(point);
    }
    return true;
  }

  FrameLayout layout_;
  const void *interpreter_, *code_type_, *runtime_;
  const char* gil_ = nullptr;
  size_t thread_bytes_, gil_bytes_;
  char state_[4200];
  std::vector<char> chunk_;
  std::unordered_map<const char*, Code> codes_;
  int32_t next_code_ = 0;
};

class LineSampler {
 public:
  struct Options {
    std::string path, header;  // the file, and its first line: an object of JSON
    int64_t period_ns, write_ns;
    double most_cost;  // of wall time
  };

  LineSampler(const FrameReader& reader, Options options) : reader_(reader), options_(std::move(options)) {}

  void start() {
    running_ = true;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);  // signals are for the program's threads
    try {
      thread_ = std::thread([this] { loop(); });
    } catch (...) {
      running_ = false;
      pthread_sigmask(SIG_SETMASK, &before, nullptr);
      throw;
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  void stop() {
    {
      std::lock_guard<std::mutex> guard(mutex_);
      if (!running_) return;
      running_ = false;
    }
    wake_.notify_all();
    thread_.join();
  }

  // Around a fork, so that what the child copies is whole.
  void hold() { mutex_.lock(); }
  void let_go() { mutex_.unlock(); }
  // In the child of a fork the thread is not there: this object must never be destroyed, nor used again.
  const FrameReader& reader() const { return reader_; }
  const Options& options() const { return options_; }

  std::string facts() {
    std::lock_guard<std::mutex> guard(mutex_);
    return facts_now();
  }
  int64_t thread_id() const { return thread_id_; }

 private:
  struct Node {
    int32_t parent, place;
    bool operator==(const Node& other) const { return parent == other.parent && place == other.place; }
  };
  struct NodeHash {
    size_t operator()(const Node& node) const {
      return size_t((uint64_t(uint32_t(node.parent)) << 32 | uint32_t(node.place)) * 0x9E3779B97F4A7C15ull >> 7);
    }
  };
  struct Place {
    int32_t code, line, column, end_column;
    bool operator==(const Place& o) const {
      return code == o.code && line == o.line && column == o.column && end_column == o.end_column;
    }
  };
  struct PlaceHash {
    size_t operator()(const Place& place) const {
      uint64_t mixed = uint64_t(uint32_t(place.code)) << 32 | uint32_t(place.line);
      mixed = mixed * 0x9E3779B97F4A7C15ull ^ (uint64_t(uint32_t(place.column)) << 32 | uint32_t(place.end_column));
      return size_t(mixed * 0xC2B2AE3D27D4EB4Full >> 7);
    }
  };
  struct Seen {  // of a thread: frames that have not moved since the last tick keep their node
    std::vector<FrameReader::Frame> frames;
    std::vector<int32_t> nodes;
    int64_t cpu_us = -1, last_ns = 0;
  };

  static constexpr int64_t kWakeNs = 30000;  // what waking a thread costs on a busy core, beside its own time (measured: 26 us)
  static constexpr size_t kMostNodes = 1 << 20, kMostThreads = 512;
  static constexpr int64_t kLongestNs = 1000000000;
  static constexpr int64_t kFirstWriteNs = 50000000;
  static constexpr double kManyBytes = 16 << 20;

  static int64_t clock_ns(clockid_t clock) {
    timespec now{0, 0};
    clock_gettime(clock, &now);
    return int64_t(now.tv_sec) * 1000000000 + now.tv_nsec;
  }

  void loop() {
    prctl(PR_SET_NAME, "foretrace-lines");
    thread_id_ = syscall(SYS_gettid);
    short_slices();
    std::mt19937_64 random(uint64_t(getpid()) ^ uint64_t(clock_ns(CLOCK_MONOTONIC)));
    std::uniform_real_distribution<double> jitter(0.5, 1.5);
    began_ns_ = clock_ns(CLOCK_REALTIME);
    began_monotonic_ns_ = clock_ns(CLOCK_MONOTONIC);
    period_ns_ = options_.period_ns;
    int64_t written_ns = began_monotonic_ns_;
    std::unique_lock<std::mutex> lock(mutex_);
    while (running_) {
      const auto pause = std::chrono::nanoseconds(int64_t(double(period_ns_) * jitter(random)));
      const auto until = std::chrono::steady_clock::now() + pause;
      while (running_ && wake_.wait_until(lock, until) != std::cv_status::timeout) {
      }
      if (!running_) break;
      const int64_t before_ns = clock_ns(CLOCK_THREAD_CPUTIME_ID);
      tick();
      const int64_t now_ns = clock_ns(CLOCK_MONOTONIC);
      // More often at first: a loader's workers may live for less than a second.
      if (now_ns - written_ns >= std::min(options_.write_ns, kFirstWriteNs + (now_ns - began_monotonic_ns_) / 2)) {
        write_down();
        written_ns = now_ns;
      }
      cost_ns_ = clock_ns(CLOCK_THREAD_CPUTIME_ID);
      guard_cost(cost_ns_ - before_ns + kWakeNs);
    }
    write_down();
  }

  // So that a thread that wakes need not wait for the end of the program's time slice: sleeps would be seen too often (Linux 6.12).
  static void short_slices() {
#ifdef SYS_sched_setattr
    struct {
      uint32_t size, policy;
      uint64_t flags;
      int32_t nice;
      uint32_t priority;
      uint64_t runtime, deadline, period;
    } slice{};
    slice.size = sizeof slice;
    slice.nice = 20 - int32_t(syscall(SYS_getpriority, 0, 0));  // stays as it is
    slice.runtime = 100000;
    syscall(SYS_sched_setattr, 0, &slice, 0);
#endif
  }

  // The interval that keeps own time and wake-ups within their share.
  void guard_cost(int64_t spent_ns) {
    mean_ns_ += (double(spent_ns) - mean_ns_) / (ticks_ < 16 ? double(ticks_ ? ticks_ : 1) : 16.0);
    const double least = mean_ns_ / options_.most_cost;
    // A program that runs for days leaves a file that still can be read: twice the time, far less than twice the bytes.
    const double wished = double(options_.period_ns) * (1.0 + double(bytes_) / kManyBytes);
    period_ns_ = int64_t(std::min(double(kLongestNs), std::max(wished, least)));
  }

  void tick() {
    const int64_t t_ns = clock_ns(CLOCK_REALTIME), now_ns = clock_ns(CLOCK_MONOTONIC);
    ++ticks_;
    const char* const holder = reader_.holder();
    const char* next = nullptr;
    size_t count = 0;
    for (const char* thread = reader_.first_thread(); thread && count < kMostThreads; thread = next, ++count) {
      uint64_t id = 0;
      if (!reader_.look(thread, next, id)) {
        ++torn_;
        break;
      }
      bool whole = reader_.walk(thread, frames_);
      for (int tries = 1; tries < 3 && !whole; ++tries) whole = reader_.look(thread, next, id) && reader_.walk(thread, frames_);
      if (whole && frames_.empty()) continue;
      Seen& seen = threads_[id];
      const int32_t node = whole ? node_of(seen, now_ns) : -1;
      if (node < 0) {
        ++torn_;
        seen.frames.clear();
        seen.nodes.clear();
        continue;
      }
      timespec cpu{0, 0};
      const bool timed = clock_gettime(clockid_t(~unsigned(id) << 3 | 6), &cpu) == 0;
      const int64_t cpu_us = timed ? int64_t(cpu.tv_sec) * 1000000 + cpu.tv_nsec / 1000 : seen.cpu_us;
      const bool holds = thread == holder;
      const int flags = (holds ? 1 : 0) | (!holds && waits(id) ? 2 : 0);
      add(t_column_, samples_ ? t_ns - last_ns_ : t_ns);
      add(thread_column_, int64_t(id));
      add(stack_column_, node);
      add(flags_column_, flags);
      add(cpu_column_, seen.cpu_us < 0 ? -1 : std::max<int64_t>(cpu_us - seen.cpu_us, 0));
      last_ns_ = t_ns;
      ++samples_;
      seen.cpu_us = cpu_us;
      seen.last_ns = now_ns;
    }
    if (threads_.size() > 2 * count + 16) {
      for (auto thread = threads_.begin(); thread != threads_.end();) {
        thread = now_ns - thread->second.last_ns > kLongestNs ? threads_.erase(thread) : std::next(thread);
      }
    }
  }

  static void add(std::string& column, int64_t value) {
    char text[24];
    std::snprintf(text, sizeof text, column.empty() ? "%lld" : ",%lld", static_cast<long long>(value));
    column += text;
  }

  // The stack of `frames_`; below zero where it cannot be read. Outer frames that are where they were need no look.
  int32_t node_of(Seen& seen, int64_t now_ns) {
    const size_t depth = frames_.size();
    size_t same = 0;
    while (same < depth && same < seen.frames.size()) {
      const auto &here = frames_[depth - 1 - same], &before = seen.frames[seen.frames.size() - 1 - same];
      if (here.code != before.code || here.instruction != before.instruction || here.address != before.address) break;
      ++same;
    }
    seen.nodes.resize(same);
    int32_t node = same ? seen.nodes[same - 1] : -1;
    for (size_t i = depth - same; i--;) {
      const auto* code = reader_.code_at(frames_[i].code, now_ns);
      const int64_t unit = code ? reader_.unit_of(frames_[i], *code) : -1;
      if (unit < 0) return -1;
      node = child(node, place_of(*code, unit));
      if (node < 0) return -1;
      seen.nodes.push_back(node);
    }
    seen.frames = frames_;
    return node;
  }

  int32_t place_of(const FrameReader::Code& code, int64_t unit) {
    const auto [known, fresh_unit] = units_.try_emplace(uint64_t(uint32_t(code.id)) << 32 | uint32_t(unit), 0);
    if (!fresh_unit) return known->second;
    const Position position = position_of(code.table, code.first_line, unit);
    const Place place{code.id, position.line, position.column, position.end_column};
    const auto [found, fresh] = places_.try_emplace(place, int32_t(places_.size()));
    known->second = found->second;
    if (fresh) {
      if (!place_rows_.empty()) place_rows_ += ',';
      place_rows_ += '[' + in_json(code.file) + ',' + in_json(code.function) + ',' + std::to_string(code.first_line) + ',' +
                     std::to_string(place.line) + ',' + std::to_string(place.column) + ',' + std::to_string(place.end_column) + ']';
    }
    return found->second;
  }

  int32_t child(int32_t parent, int32_t place) {
    if (stacks_.size() >= kMostNodes) return -1;
    const auto [found, fresh] = stacks_.try_emplace(Node{parent, place}, int32_t(stacks_.size()));
    if (fresh) {
      if (!stack_rows_.empty()) stack_rows_ += ',';
      stack_rows_ += '[' + std::to_string(parent) + ',' + std::to_string(place) + ']';
    }
    return found->second;
  }

  // Whether the kernel has a thread waiting, neither running nor ready to run. No file stays open: programs close what they like.
  static bool waits(uint64_t id) {
    char path[64], text[96];
    std::snprintf(path, sizeof path, "/proc/self/task/%llu/stat", static_cast<unsigned long long>(id));
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return false;
    const ssize_t size = read(file, text, sizeof text - 1);
    close(file);
    if (size <= 0) return false;
    text[size] = 0;
    const char* end = std::strrchr(text, ')');
    return end && end[1] == ' ' && end[2] && end[2] != 'R';
  }

  std::string facts_now() const {
    char text[400];
    std::snprintf(text, sizeof text,
                  "{\"began_ns\":%lld,\"epoch_ns\":%lld,\"monotonic_ns\":%lld,\"wall_ns\":%lld,\"ticks\":%lld,\"samples\":%lld,"
                  "\"torn\":%lld,\"cost_ns\":%lld,\"period_ns\":%lld,\"thread\":%lld}",
                  (long long)began_ns_, (long long)clock_ns(CLOCK_REALTIME), (long long)clock_ns(CLOCK_MONOTONIC),
                  (long long)(clock_ns(CLOCK_MONOTONIC) - began_monotonic_ns_), (long long)ticks_, (long long)(written_ + samples_),
                  (long long)torn_, (long long)cost_ns_, (long long)period_ns_, (long long)thread_id_);
    return text;
  }

  // One line of JSON with what is new, by a single call: whole, or the last one of its file.
  void write_down() {
    if (broken_) return;
    std::string line = opened_ ? "" : options_.header + '\n';
    line += "{\"places\":[" + place_rows_ + "],\"stacks\":[" + stack_rows_ + "],\"t_ns\":[" + t_column_ + "],\"thread\":[" +
            thread_column_ + "],\"stack\":[" + stack_column_ + "],\"flags\":[" + flags_column_ + "],\"cpu_us\":[" + cpu_column_ +
            "],\"facts\":" + facts_now() + "}\n";
    // Opened anew each time: the program may have closed any descriptor. Only the first time makes the file.
    const int file = open(options_.path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC | (opened_ ? 0 : O_CREAT), 0666);
    broken_ = file < 0 || write(file, line.data(), line.size()) != ssize_t(line.size());
    if (file >= 0) close(file);
    opened_ = true;
    bytes_ += int64_t(line.size());
    written_ += samples_;
    samples_ = 0;
    for (std::string* column : {&place_rows_, &stack_rows_, &t_column_, &thread_column_, &stack_column_, &flags_column_, &cpu_column_}) {
      column->clear();
    }
  }

  FrameReader reader_;
  const Options options_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::thread thread_;
  bool running_ = false, opened_ = false, broken_ = false;
  int64_t thread_id_ = 0, began_ns_ = 0, began_monotonic_ns_ = 0, period_ns_ = 0, last_ns_ = 0;
  int64_t ticks_ = 0, torn_ = 0, samples_ = 0, written_ = 0, bytes_ = 0, cost_ns_ = 0;
  double mean_ns_ = 0;
  std::vector<FrameReader::Frame> frames_;
  std::unordered_map<uint64_t, Seen> threads_;
  std::unordered_map<uint64_t, int32_t> units_;
  std::unordered_map<Place, int32_t, PlaceHash> places_;
  std::unordered_map<Node, int32_t, NodeHash> stacks_;
  std::string place_rows_, stack_rows_, t_column_, thread_column_, stack_column_, flags_column_, cpu_column_;
};

}  // namespace foretrace
#endif
