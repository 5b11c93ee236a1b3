// The scanner: bytes of a Kineto file, pushed in pieces, become columns.
//
// Kineto writes the same bytes between two values over and over (`, "dur": `). The scanner learns these
// separators, a few per key, and skips one with a single comparison that also says which value comes next.
// Whatever does not match goes through a plain tokenizer, so any layout works.
#pragma once

#include <cmath>
#include <string>
#include <unordered_map>
#include <vector>

#include "columns.hpp"
#include "json.hpp"

namespace foretrace {

enum Kind : uint8_t { kOp, kPython, kAnnotation, kRuntime, kKernel, kCopy, kSet, kSync, kOverhead, kMemory };
inline bool on_device(uint8_t kind) { return kind >= kKernel && kind <= kSync; }

constexpr int64_t kLongestNs = int64_t(7) * 24 * 3600 * 1000000000;

// Keys of an event, and of its arguments. An argument that is not listed here has a number above kArgCount.
enum EventKey : uint32_t { kPh, kCat, kName, kPid, kTid, kTs, kDur, kArgs, kOtherKey, kEventKeyCount };
enum Arg : uint32_t {
  kExternal, kCorrelation, kSequence, kForwardThread, kShapes, kDtypes, kStrides, kInputs, kCallStack, kFlops,
  kPythonId, kPythonParent, kPythonModule, kDevice, kStream, kGrid, kBlock, kRegisters, kShared, kBlocksPerSm,
  kWarpsPerSm, kOccupancy, kGraph, kGraphNode, kBytes, kAddr, kMemoryBytes, kAllocated, kReserved, kDeviceType,
  kDeviceId, kArgName, kArgLabels,
  kOtherExternal, kOtherShapes, kOtherOccupancy,  // other spellings, told apart only in the general table
  kDropped, kArgCount
};
inline uint32_t meaning(uint32_t arg) {
  return arg == kOtherExternal ? kExternal : arg == kOtherShapes ? kShapes : arg == kOtherOccupancy ? kOccupancy : arg;
}

// Arguments that have a column, by kind; any other goes to the general table. As in kineto_python.py.
constexpr uint64_t bit(uint32_t arg) { return uint64_t(1) << arg; }
constexpr uint64_t kCommonArgs = bit(kExternal) | bit(kCorrelation);
constexpr uint64_t kDeviceArgs = kCommonArgs | bit(kDevice) | bit(kStream);
constexpr uint64_t kCopyArgs = kDeviceArgs | bit(kBytes) | bit(kGraph) | bit(kGraphNode);
constexpr uint64_t kKnownArgs[] = {
    /* op */ kCommonArgs | bit(kSequence) | bit(kForwardThread) | bit(kShapes) | bit(kDtypes) | bit(kStrides) |
        bit(kInputs) | bit(kCallStack) | bit(kFlops),
    /* python */ bit(kPythonId) | bit(kPythonParent) | bit(kPythonModule),
    /* annotation */ kCommonArgs,
    /* runtime */ kCommonArgs,
    /* kernel */ kDeviceArgs | bit(kGrid) | bit(kBlock) | bit(kRegisters) | bit(kShared) | bit(kBlocksPerSm) |
        bit(kWarpsPerSm) | bit(kOccupancy) | bit(kGraph) | bit(kGraphNode),
    /* copy */ kCopyArgs,
    /* set */ kCopyArgs,
    /* sync */ kDeviceArgs,
    /* overhead */ kCommonArgs,
};

enum RepairCode {
  kTruncated, kDamagedPlace, kNotAnEvent, kNoTime, kNoDuration, kNegativeDuration, kAbsurdDuration,
  kImpossibleStart, kNoteBareWord, kNoteBadEscape, kNoteRawQuote, kNoteControl, kRepairCount
};
inline constexpr const char* kRepairNames[] = {
    "truncated", "damaged", "not-an-event", "no-time", "no-duration", "negative-duration", "absurd-duration",
    "impossible-start", "bare-word", "bad-escape", "raw-quote", "control-character"};

struct Repair {
  int64_t count = 0;
  int64_t offset = -1;
};

// What was read, in file order. A kind's own columns hold its events in the order in which they stand here.
struct Raw {
  Texts names, texts, categories;
  std::vector<uint8_t> text_notes;

  struct Lane {
    bool text[2];      // whether process and thread are text
    int64_t value[2];  // the number, or the code of the text
  };
  std::vector<Lane> lanes;
  std::vector<int64_t> lane_device, lane_stream;

  Column<int64_t> start, dur;
  Column<uint32_t> name;
  Column<uint32_t> lane;
  Column<uint8_t> kind;
  Column<uint32_t> gpu_annotations;  // rows that are a device's copy of a host annotation

  struct {
    Column<uint32_t> shapes, dtypes, strides, inputs;
    Column<uint64_t> external;
    SparseColumn<int64_t> sequence{kNullI64}, flops{kNullI64};
    SparseColumn<int32_t> forward_thread{kNullI32};
    SparseColumn<uint32_t> call_stack{kNullU32};
  } op;
  struct {
    Column<int64_t> id, parent;
  } python;
  struct {
    Column<uint64_t> external, correlation;
  } runtime, device;  // `device` holds kernels, copies, sets and syncs
  struct {
    Column<int32_t> grid[3], block[3];
    SparseColumn<int32_t> registers{kNullI32};
    SparseColumn<int64_t> shared{kNullI64};
    SparseColumn<double> blocks_per_sm{std::nan("")}, warps_per_sm{std::nan("")}, occupancy{std::nan("")};
    SparseColumn<int64_t> graph{kNullI64}, graph_node{kNullI64};
  } kernel;
  Column<int64_t> copy_size;  // of copies and sets
  struct {
    Column<int64_t> bytes;
    Column<uint64_t> address;
    SparseColumn<int64_t> device_type{kNullI64}, device_id{kNullI64}, allocated{kNullI64}, reserved{kNullI64};
  } memory;
  struct {
    Column<uint32_t> row, key;
    Column<uint8_t> type;
    Column<int64_t> value;
  } args;
  struct {
    Column<uint32_t> track, name, key;
    Column<int64_t> at;
    Column<double> value;
  } counters;
  struct {
    Column<uint32_t> track, name, text;
  } labels;
  struct {
    Column<uint32_t> name;
    Column<int64_t> at;
  } instants;
  struct {
    Column<uint32_t> name;
    Column<int64_t> start, dur;
  } windows;

  std::vector<std::pair<std::string, std::string>> header;
  Repair repairs[kRepairCount];
  int64_t events = 0, flows = 0, skipped_phase = 0, lost_bytes = 0;
  int64_t op_ids = 0, op_id_range = 0;  // filled in by the linker
  bool trace_events = false, bare_list = false;

  void repair(RepairCode code, int64_t offset, int64_t count = 1) {
    if (!repairs[code].count) repairs[code].offset = offset;
    repairs[code].count += count;
  }
};

double to_real(const Token& token);  // NaN if it is no finite number; defined in module.cpp

class Scanner {
 public:
  Scanner() { learned_.resize(kEventKeyCount + 1 + kArgCount); }

  Raw raw;

  // Begins in the middle of the events, at a byte offset of the file.
  void start_in_events(int64_t offset) {
    state_ = State::kEvents;
    consumed_ = offset;
    raw.trace_events = true;
  }

  // Room for `size` more bytes; `pushed` says how many of them were filled.
  char* room(size_t size) {
    if (at_ > 0) {
      std::memmove(buffer_.data(), buffer_.data() + at_, filled_ - at_);
      consumed_ += int64_t(at_);
      filled_ -= at_;
      at_ = 0;
    }
    buffer_.resize(filled_ + size + kPadding);
    return buffer_.data() + filled_;
  }
  void pushed(size_t size) {
    filled_ += size;
    std::memset(buffer_.data() + filled_, 0, kPadding);
    run(false);
  }
  void finish() {
    if (finished_) return;
    finished_ = true;
    if (!buffer_.data()) room(0);
    std::memset(buffer_.data() + filled_, 0, kPadding);
    run(true);
    buffer_.release();
    at_ = filled_ = 0;
  }

  // Whether all that was pushed has been read, and the next thing is an event.
  bool between_events() const { return state_ == State::kEvents && at_ == filled_; }
  bool not_json() const { return state_ == State::kNotJson; }

 private:
  bool finished_ = false;
  enum class State : uint8_t { kStart, kDocument, kEvents, kDone, kNotJson };

  // What lies between the end of one value and the start of the next.
  struct Step {
    bool in_args = false;       // whether the next value is an argument
    bool clears_args = false;   // another set of arguments begins: the last one counts
    bool ends_event = false;
    bool next_event = false;    // and another event begins, at `brace`
    uint32_t key = 0;           // EventKey, or Arg, of the next value
    uint32_t brace = 0;
    uint32_t length = 0;
  };
  static constexpr size_t kLongestSeparator = 64;
  struct Separator {
    char text[kLongestSeparator];
    uint64_t tail_mask;  // of the last, partial word
    Step step;
  };
  struct Learned {
    Separator separator[4];
    uint8_t count = 0, latest = 0;
  };

  struct Argument {
    uint32_t key;
    uint32_t code;  // of a container that was met before
    Token token;
    uint8_t notes = 0;  // of a container that was not
  };
  struct Event {
    uint32_t seen = 0;
    Token field[kEventKeyCount];
    std::vector<Argument> args;
    uint8_t notes = 0;
    void clear() {
      seen = 0;
      notes = 0;
      args.clear();
    }
    bool has(EventKey key) const { return seen & (1u << key); }
  };

  static constexpr size_t kLargestEvent = size_t(16) << 20;
  static constexpr size_t kLargestHeader = size_t(256) << 20;
  static constexpr int64_t kResyncWork = int64_t(4) << 20;  // RESYNC_WORK of kineto_python.py
  static constexpr uint32_t kLearnedKeys = 4096;  // a file with more has no layout to learn

  int64_t offset_of(const char* p) const { return consumed_ + (p - buffer_.data()); }
  const char* end() const { return buffer_.data() + filled_; }
  void move_to(const char* p) { at_ = size_t(p - buffer_.data()); }

  void run(bool last) {
    for (;;) {
      const State before = state_;
      const size_t place = at_;
      switch (state_) {
        case State::kStart: start(last); break;
        case State::kDocument: document(last); break;
        case State::kEvents: events(last); break;
        case State::kDone: case State::kNotJson: at_ = filled_; return;
      }
      if (state_ == before && (at_ == place || at_ == filled_)) {
        if (!last || at_ < filled_ || state_ == State::kDone) return;
        if (state_ != State::kStart) raw.repair(kTruncated, offset_of(end()));
        else state_ = State::kNotJson;
        if (state_ != State::kNotJson) state_ = State::kDone;
        return;
      }
    }
  }

  void start(bool last) {
    const char* p = buffer_.data() + at_;
    if (consumed_ + int64_t(at_) == 0) {
      if (end() - p < 3 && !last) return;
      if (end() - p >= 3 && !std::memcmp(p, "\xEF\xBB\xBF", 3)) p += 3;
    }
    p = skip_space(p, end());
    move_to(p);
    if (p == end()) return;
    if (*p == '{') {
      state_ = State::kDocument;
    } else if (*p == '[') {
      state_ = State::kEvents;
      raw.bare_list = true;
      bare_ = true;
    } else {
      state_ = State::kNotJson;
      return;
    }
    move_to(p + 1);
  }

  // --- members of the document around the events ---------------------------------------------------------

  void document(bool last) {
    const char* p = buffer_.data() + at_;
    for (;;) {
      while (p < end() && (kChars.space[uint8_t(*p)] || *p == ',')) ++p;
      move_to(p);
      if (p == end()) return;
      if (*p == '}') {
        state_ = State::kDone;
        return;
      }
      uint8_t notes = 0;
      Token key{};
      const char* q = p;
      Status status = *p == '"' ? scan_string(q, end(), notes, &key) : Status::kDamaged;
      if (notes & kRawQuote) status = Status::kDamaged;  // it may have run on into the next key
      if (status == Status::kOk) status = member(q, key, notes);
      if (status == Status::kOk) {
        p = q;
        move_to(p);
        if (state_ == State::kEvents) return;
        continue;
      }
      if (status == Status::kIncomplete && !last && size_t(end() - p) < kLargestHeader) return;
      document_damage(p, status == Status::kIncomplete && last, last);
      return;
    }
  }

  Status member(const char*& q, const Token& key, uint8_t& notes) {
    q = skip_space(q, end());
    if (*q != ':') return Status::kDamaged;
    q = skip_space(q + 1, end());
    if (q == end()) return Status::kIncomplete;
    if (key.length == 11 && !std::memcmp(key.text, "traceEvents", 11) && *q == '[') {
      ++q;
      raw.trace_events = true;
      state_ = State::kEvents;
      return Status::kOk;
    }
    const char* const begin = q;
    const Status status = check_value(q, end(), notes);
    if (status == Status::kOk) {
      raw.header.emplace_back(std::string(key.text, key.length), std::string(begin, size_t(q - begin)));
    }
    return status;
  }

  // A header that cannot be read is passed over if the events can be found behind it.
  void document_damage(const char* p, bool truncated, bool last) {
    if (!raw.trace_events) {
      static const char kWanted[] = "\"traceEvents\"";
      for (const char* q = p; q + sizeof kWanted < end(); ++q) {
        q = static_cast<const char*>(std::memchr(q, '"', size_t(end() - q)));
        if (!q || end() - q < ptrdiff_t(sizeof kWanted)) break;
        if (std::memcmp(q, kWanted, sizeof kWanted - 1) != 0) continue;
        const char* r = skip_space(q + sizeof kWanted - 1, end());
        if (*r != ':') continue;
        r = skip_space(r + 1, end());
        if (*r != '[') continue;
        raw.repair(kDamagedPlace, offset_of(p));
        raw.lost_bytes += q - p;
        raw.trace_events = true;
        state_ = State::kEvents;
        move_to(r + 1);
        return;
      }
    }
    if (!raw.trace_events && !last && size_t(end() - p) < kLargestHeader) return;  // they may yet come
    raw.repair(truncated ? kTruncated : kDamagedPlace, truncated ? offset_of(end()) : offset_of(p));
    state_ = State::kDone;
  }

  // --- events ----------------------------------------------------------------------------------------------

  void events(bool last) {
    const char* p = buffer_.data() + at_;
    for (;;) {
      while (p < end() && (kChars.space[uint8_t(*p)] || *p == ',')) ++p;
      move_to(p);
      if (p == end()) return;
      if (*p == ']') {
        move_to(p + 1);
        state_ = bare_ ? State::kDone : State::kDocument;
        return;
      }
      Status status = *p == '{' ? run_of_events(p) : Status::kDamaged;
      move_to(p);
      if (status == Status::kOk) continue;
      if (status == Status::kIncomplete && !last && size_t(end() - p) < kLargestEvent) return;
      if (!resync(p, status == Status::kIncomplete, last)) return;
      p = buffer_.data() + at_;
    }
  }

  // Reads events one after another from a brace; `p` is left at the first that is not whole.
  Status run_of_events(const char*& p) {
    const char* q = p;
    uint32_t slot = 0;  // 0: before the first value of an event
    bool in_args = false;
    event_.clear();
    for (;;) {
      Step step;
      if (!match(slot, q, step)) {
        const Status status = walk(slot, in_args, q, step);
        if (status != Status::kOk) return status;
      }
      if (step.clears_args && !clear_args()) return Status::kDamaged;
      if (step.ends_event) {
        const Status status = commit(offset_of(p));
        if (status != Status::kOk) return status;
        event_.clear();
        if (!step.next_event) {
          p = q + step.length;
          return Status::kOk;
        }
        p = q + step.brace;
      }
      q = skip_space(q + step.length, end());  // a learned separator may be followed by more space than it had
      if (q == end()) return Status::kIncomplete;
      in_args = step.in_args;
      Token token;
      if (in_args) {
        uint32_t code = kNullU32;
        if (!(*q == '[' && known_container(q, token, code))) {
          const Status status = scan_value(q, end(), event_.notes, &token);
          if (status != Status::kOk) return status;
        }
        if (step.key != kDropped) {
          event_.args.push_back(Argument{step.key, code, token});
        } else if (token.type == Type::kContainer) {
          const Status status = check_container(token, 2);
          if (status != Status::kOk) return status;
        }
        slot = 1 + kEventKeyCount + step.key;
      } else {
        const Status status = scan_value(q, end(), event_.notes, &token);
        if (status != Status::kOk) return status;
        if (token.type == Type::kContainer) {
          const Status sound = check_container(token, 1);
          if (sound != Status::kOk) return sound;
        }
        if (step.key == kArgs && !clear_args()) return Status::kDamaged;
        event_.field[step.key] = token;
        event_.seen |= 1u << step.key;
        slot = 1 + step.key;
      }
    }
  }

  // Other arguments follow, and the last ones count; those before them must be sound all the same.
  bool clear_args() {
    const bool sound = check_args() == Status::kOk;
    event_.args.clear();
    return sound;
  }

  // Looks into a container that was only skipped so far.
  Status check_container(const Token& token, int depth, uint8_t* found = nullptr) {
    const char* p = token.text;
    uint8_t notes = 0;
    const Status status = check_value(p, token.text + token.length, notes, depth);
    event_.notes |= notes;
    if (found) *found = notes;
    return status == Status::kOk ? status : Status::kDamaged;
  }

  // Shapes and types repeat: a list that begins like one met before is compared with it as a whole first.
  bool known_container(const char*& q, Token& token, uint32_t& code) const {
    const uint32_t guess = containers_[container_slot(q)];
    if (guess == kNullU32) return false;
    const size_t length = raw.texts.length(guess) - 1;
    if (size_t(end() - q) <= length || std::memcmp(q, raw.texts.text(guess) + 1, length) != 0) return false;
    token = Token{q, uint32_t(length), Type::kContainer};
    code = guess;
    q += length;
    return true;
  }
  static size_t container_slot(const char* q) {
    uint64_t hash = (load8(q) * 0x9E3779B97F4A7C15ull) ^ (load8(q + 8) * 0xC2B2AE3D27D4EB4Full);
    hash ^= hash >> 31;
    return size_t(hash * 0x9FB21C651E98DF25ull >> 52);
  }

  bool match(uint32_t slot, const char* q, Step& step) {
    if (slot >= learned_.size()) return false;
    Learned& learned = learned_[slot];
    if (!learned.count) return false;
    if (matches(learned.separator[learned.latest], q)) {
      step = learned.separator[learned.latest].step;
      return true;
    }
    for (uint8_t i = 0; i < learned.count; ++i) {
      if (i != learned.latest && matches(learned.separator[i], q)) {
        learned.latest = i;
        step = learned.separator[i].step;
        return true;
      }
    }
    return false;
  }

  // Word by word; the padding behind the buffer is there for this.
  bool matches(const Separator& separator, const char* q) const {
    const uint32_t length = separator.step.length;
    uint32_t i = 0;
    for (; i + 8 <= length; i += 8) {
      if (load8(q + i) != load8(separator.text + i)) return false;
    }
    return ((load8(q + i) ^ load8(separator.text + i)) & separator.tail_mask) == 0 && size_t(end() - q) > length;
  }

  void learn(uint32_t slot, const char* q, const Step& step) {
    if (step.length > kLongestSeparator - 8 || slot >= learned_.size()) return;
    Learned& learned = learned_[slot];
    const uint8_t at = learned.count < 4 ? learned.count++ : uint8_t((learned.latest + 1) & 3);
    Separator& separator = learned.separator[at];
    std::memset(separator.text, 0, sizeof separator.text);
    std::memcpy(separator.text, q, step.length);
    char mask[8] = {};
    std::memset(mask, 0xFF, step.length % 8);
    separator.tail_mask = load8(mask);
    separator.step = step;
    learned.latest = at;
  }

  // The plain tokenizer: from the end of a value, or from an event's brace, to the next value.
  Status walk(uint32_t slot, bool in_args, const char* const from, Step& step) {
    const char* q = from;
    bool fresh = false;  // just behind an opening brace
    bool comma = false;
    const char* event_end = nullptr;
    if (slot == 0) {
      ++q;
      fresh = true;
    }
    const auto stop_at_end = [&](Status status) {
      if (!event_end) return status;
      const bool clears_args = step.clears_args;
      step = Step{};
      step.clears_args = clears_args;
      step.ends_event = true;
      step.length = uint32_t(event_end - from);
      return Status::kOk;
    };
    for (;;) {
      q = skip_space(q, end());
      if (q == end()) return stop_at_end(Status::kIncomplete);
      if (*q == ',' && !comma && !fresh) {
        comma = true;
        ++q;
      } else if (*q == '}' && in_args) {
        in_args = fresh = comma = false;
        ++q;
      } else if (*q == '}') {
        if (event_end) return stop_at_end(Status::kOk);
        event_end = ++q;
        step.ends_event = true;
        const char* r = skip_space(q, end());
        if (r < end() && *r == ',') r = skip_space(r + 1, end());
        if (r >= end() || *r != '{') return stop_at_end(Status::kOk);
        step.next_event = true;
        step.brace = uint32_t(r - from);
        q = r + 1;
        fresh = true;
        comma = false;
      } else if (*q == '"' && (fresh || comma)) {
        fresh = comma = false;
        Token key{};
        uint8_t ignored = 0;
        uint8_t& notes = step.next_event ? ignored : event_.notes;
        Status status = scan_string(q, end(), notes, &key);
        if (status != Status::kOk || ignored) return stop_at_end(status);
        q = skip_space(q, end());
        if (*q != ':') return stop_at_end(Status::kDamaged);
        q = skip_space(q + 1, end());
        if (q == end()) return stop_at_end(Status::kIncomplete);
        if (!in_args && *q == '{' && key.length == 4 && !std::memcmp(key.text, "args", 4)) {
          in_args = fresh = true;
          step.clears_args |= !event_end;
          ++q;
          continue;
        }
        step.in_args = in_args;
        step.key = in_args ? arg_key(key) : event_key(key);
        step.length = uint32_t(q - from);
        // The same bytes may stand before arguments that are an object and some that are not.
        const bool bare_args = !in_args && step.key == kArgs;
        if (!notes && !bare_args) learn(slot, from, step);
        return Status::kOk;
      } else {
        return stop_at_end(Status::kDamaged);
      }
    }
  }

  static uint32_t event_key(const Token& key) {
    static const char* const kKeys[] = {"ph", "cat", "name", "pid", "tid", "ts", "dur", "args"};
    for (uint32_t i = 0; i < kOtherKey; ++i) {
      if (std::strlen(kKeys[i]) == key.length && !std::memcmp(kKeys[i], key.text, key.length)) return i;
    }
    return kOtherKey;
  }

  uint32_t arg_key(const Token& key) {
    static const std::unordered_map<std::string, uint32_t> kKeys = {
        {"External id", kExternal}, {"external id", kOtherExternal}, {"correlation", kCorrelation},
        {"Sequence number", kSequence}, {"Fwd thread id", kForwardThread}, {"Input Dims", kShapes},
        {"Input dims", kOtherShapes}, {"Input type", kDtypes}, {"Input Strides", kStrides},
        {"Concrete Inputs", kInputs}, {"Call stack", kCallStack}, {"flops", kFlops}, {"Python id", kPythonId},
        {"Python parent id", kPythonParent}, {"Python module id", kPythonModule}, {"device", kDevice},
        {"stream", kStream}, {"grid", kGrid}, {"block", kBlock}, {"registers per thread", kRegisters},
        {"shared memory", kShared}, {"blocks per SM", kBlocksPerSm}, {"warps per SM", kWarpsPerSm},
        {"est. achieved occupancy %", kOccupancy}, {"theoretical occupancy %", kOtherOccupancy},
        {"graph id", kGraph}, {"graph node id", kGraphNode}, {"bytes", kBytes}, {"Addr", kAddr},
        {"Bytes", kMemoryBytes}, {"Total Allocated", kAllocated}, {"Total Reserved", kReserved},
        {"Device Type", kDeviceType}, {"Device Id", kDeviceId}, {"name", kArgName}, {"labels", kArgLabels},
        {"Ev Idx", kDropped}, {"Record function id", kDropped}, {"Profiler Event Index", kDropped},
        {"Trace name", kDropped}, {"Trace iteration", kDropped}, {"finished", kDropped}, {"queued", kDropped},
        {"context", kDropped}, {"cbid", kDropped}, {"cid", kDropped}, {"external ts", kDropped},
        {"memory bandwidth (GB/s)", kDropped}, {"Python thread", kDropped}, {"Op count", kDropped},
        {"Device", kDropped}};
    std::string text(key.text, key.length);
    const auto known = kKeys.find(text);
    if (known != kKeys.end()) {
      if (known->second != kDropped) raw_key_[known->second] = text;
      return known->second;
    }
    const auto added = other_keys_.emplace(text, uint32_t(kArgCount + other_keys_.size()));
    if (added.second) {
      key_names_.push_back(text);
      if (other_keys_.size() < kLearnedKeys) learned_.resize(1 + kEventKeyCount + kArgCount + other_keys_.size());
    }
    return added.first->second;
  }

  uint32_t key_code(uint32_t key) {
    const std::string& text = key >= kArgCount ? key_names_[key - kArgCount] : raw_key_[key];
    return raw.texts.intern('s', text.data(), text.size());
  }

  // --- one event -------------------------------------------------------------------------------------------

  Status commit(int64_t offset);
  Status commit_span(const Token& category, int64_t offset, int64_t at, uint32_t lane);
  Status commit_memory(int64_t at, uint32_t lane);
  Status check_args();
  void intern_args();
  uint32_t lane_of();
  int64_t duration(int64_t offset);
  uint32_t text_code(const Token& token, uint32_t code, bool& sound);
  void drop_repeats();
  void argument(uint32_t row, const Argument& argument);

  const Token* find_arg(uint32_t key) const {
    for (size_t i = event_.args.size(); i-- > 0;) {
      if (event_.args[i].key == key) return &event_.args[i].token;
    }
    return nullptr;
  }
  uint32_t name_code() {
    if (!event_.has(kName) || event_.field[kName].type != Type::kString) return raw.names.intern('s', "", 0);
    return raw.names.intern('s', event_.field[kName].text, event_.field[kName].length);
  }
  bool name_is(const char* text) const {
    const Token& name = event_.field[kName];
    return event_.has(kName) && name.type == Type::kString && name.length == std::strlen(text) &&
           !std::memcmp(name.text, text, name.length);
  }

  // --- damage ------------------------------------------------------------------------------------------------

  // Moves on to the next place where a whole event stands; false if more bytes are needed or none is left.
  bool resync(const char* p, bool truncated, bool last) {
    for (const char* q = p + 1; q < end(); ++q) {
      q = static_cast<const char*>(std::memchr(q, '{', size_t(end() - q)));
      if (!q) break;
      if (!looks_like_event(q)) continue;
      const char* r = q;
      uint8_t notes = 0;
      const Status status = check_event(r, notes);
      resync_work_ += r - q;
      if (resync_work_ > kResyncWork + 8 * offset_of(q)) break;
      // Its end may yet come: whether it counts must not depend on where the input was cut.
      if (status == Status::kIncomplete && !last && size_t(end() - q) < kLargestEvent) return false;
      if (status != Status::kOk) continue;
      raw.repair(kDamagedPlace, offset_of(p));
      raw.lost_bytes += q - p;
      move_to(q);
      return true;
    }
    if (!last && size_t(end() - p) < 2 * kLargestEvent) return false;
    if (truncated) {  // containers were only skipped: look again whether it is the end that is missing
      const char* r = p;
      uint8_t notes = 0;
      truncated = last && check_value(r, end(), notes) == Status::kIncomplete;
    }
    raw.repair(truncated ? kTruncated : kDamagedPlace, offset_of(p));
    raw.lost_bytes += end() - p;
    move_to(end());
    if (last) state_ = State::kDone;
    return false;
  }

  bool looks_like_event(const char* q) const {
    q = skip_space(q + 1, end());
    if (q == end() || *q != '"') return false;
    for (const char* key : {"\"ph\"", "\"name\"", "\"cat\"", "\"pid\"", "\"tid\"", "\"ts\""}) {
      const size_t length = std::strlen(key);
      if (size_t(end() - q) >= length && !std::memcmp(q, key, length)) return true;
    }
    return false;
  }

  // A whole object that has a phase of one letter.
  Status check_event(const char*& r, uint8_t& notes) const {
    const char* q = r;
    const Status status = check_value(r, end(), notes);
    if (status != Status::kOk) return status;
    bool phase = false;
    q = skip_space(q + 1, r);
    while (*q == '"') {
      Token key{}, value{};
      scan_string(q, end(), notes, &key);
      q = skip_space(skip_space(q, r) + 1, r);
      scan_value(q, end(), notes, &value);
      if (key.length == 2 && !std::memcmp(key.text, "ph", 2)) {
        phase = phase_letter(value) != 0;
      }
      q = skip_space(q, r);
      if (*q == ',') q = skip_space(q + 1, r);
    }
    return phase ? Status::kOk : Status::kDamaged;
  }

  Memory buffer_;
  size_t at_ = 0, filled_ = 0;
  int64_t consumed_ = 0;  // bytes of the file before the buffer
  int64_t resync_work_ = 0;
  State state_ = State::kStart;
  bool bare_ = false;
  Event event_;
  std::vector<uint32_t> containers_ = std::vector<uint32_t>(4096, kNullU32);  // by how they begin
  std::vector<Learned> learned_;
  std::unordered_map<std::string, uint32_t> other_keys_;
  std::vector<std::string> key_names_;
  std::unordered_map<uint32_t, std::string> raw_key_;
  std::vector<int16_t> category_kind_;
  struct LaneKey {
    int64_t process, thread;
    uint8_t text;
    bool operator==(const LaneKey& other) const {
      return process == other.process && thread == other.thread && text == other.text;
    }
  };
  struct LaneHash {
    size_t operator()(const LaneKey& key) const {
      uint64_t hash = uint64_t(key.process) * 0x9E3779B97F4A7C15ull ^ uint64_t(key.thread) ^ key.text;
      hash *= 0xD6E8FEB86659FD93ull;
      return size_t(hash ^ (hash >> 32));
    }
  };
  std::unordered_map<LaneKey, uint32_t, LaneHash> lane_index_;
  LaneKey last_lane_{};
  uint32_t last_lane_number_ = kNullU32;

  friend void merge(Scanner& into, Scanner& from);
};

}  // namespace foretrace
