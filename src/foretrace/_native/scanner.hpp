// The scanner: bytes of a Kineto file, pushed in pieces, become columns.
//
// Kineto writes the same bytes between two values over and over (`, "dur": `). The scanner learns these
// separators, some per key, and skips one with a single comparison that also says which value comes next.
// Where a value was the same several times (`"ph": "X"`), a longer separator is learned that holds it, too.
// Names and lists are first compared with the one that followed the last time.
// Events that are a copy of an earlier one but for some numbers take a shorter way: templates.hpp.
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
constexpr uint64_t kTextArgs = bit(kShapes) | bit(kDtypes) | bit(kStrides) | bit(kInputs) | bit(kCallStack);
constexpr uint64_t kKnownArgs[] = {
    /* op */ kCommonArgs | kTextArgs | bit(kSequence) | bit(kForwardThread) | bit(kFlops),
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
  bool in_events() const { return state_ == State::kEvents; }
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
  static constexpr size_t kLongestSeparator = 256;
  static constexpr size_t kMostSeparators = 12;  // behind one key
  static constexpr size_t kMostConstants = 12;   // in one separator
  static constexpr size_t kLongestConstant = 48;
  static constexpr uint8_t kSameTimes = 4;     // a value that was the same so often in a row is taken for constant
  static constexpr uint8_t kOtherTimes = 100;  // one that changed so often is not
  // A value within a separator, and the step that leads to it.
  struct Constant {
    Step step;
    uint32_t offset, length;
    uint32_t code;  // of a container
    Type type;
  };
  struct Separator {
    Step step;  // the last one; its length is that of the whole text
    uint64_t tail = 0;  // the last bytes of the text, if it is that long
    uint32_t hits = 0;
    uint8_t same = 0, other = 0, value_length = 0, constants = 0;
    bool longer = false;  // another one begins with this text
    char text[kLongestSeparator];
    char value[kLongestConstant];  // what stood behind it last
    Constant constant[kMostConstants];
  };
  struct Learned {
    std::vector<Separator> separators;
  };

  struct Argument {
    uint32_t key;
    uint32_t code;  // of a container that was met before
    Token token;
    uint32_t guess;  // where the container of this place is remembered
    uint8_t notes;   // of a container that was not met before
  };
  // Arguments are written in place: to copy what was written a moment ago, in other widths, makes the processor wait.
  class Arguments {
   public:
    Argument& add() {
      if (count_ == all_.size()) all_.resize(all_.empty() ? 64 : 2 * all_.size());
      return all_[count_++];
    }
    void clear() { count_ = 0; }
    void shorten(size_t count) { count_ = count; }
    size_t size() const { return count_; }
    Argument& operator[](size_t i) { return all_[i]; }
    const Argument& operator[](size_t i) const { return all_[i]; }
    Argument* begin() { return all_.data(); }
    Argument* end() { return all_.data() + count_; }

   private:
    std::vector<Argument> all_;
    size_t count_ = 0;
  };
  struct Event {
    uint32_t seen = 0;
    uint32_t name = kNullU32;  // the code of the name, if that is known already
    uint32_t list = 0;         // the last list among its arguments
    uint32_t unknown = 0;      // containers among its arguments that were not guessed
    uint64_t keys = 0;         // of arguments; those that share a bit may be the same
    bool repeated = false;
    uint8_t notes = 0;
    Token field[kEventKeyCount];
    Arguments args;
    void clear() {
      seen = 0;
      name = kNullU32;
      notes = 0;
      clear_args();
    }
    void clear_args() {
      list = unknown = 0;
      keys = 0;
      repeated = false;
      args.clear();
    }
    bool has(EventKey key) const { return seen & (1u << key); }
  };

  // The text of a value that is likely to come again.
  struct Seen {
    Type type = Type::kNull;
    uint32_t length = 0;
    char text[24] = {};
    bool is(const Token& token) const {
      if (token.type != type || token.length != length) return false;
      uint32_t i = 0;
      for (; i + 8 <= length; i += 8) {
        if (load8(token.text + i) != load8(text + i)) return false;
      }
      for (; i < length; ++i) {
        if (token.text[i] != text[i]) return false;
      }
      return true;
    }
    void set(const Token& token) {
      type = token.length <= sizeof text ? token.type : Type::kNull;
      length = token.length <= sizeof text ? token.length : 0;
      std::memcpy(text, token.text, length);
    }
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
    if (!last && filled_ - at_ < enough_) return;
    enough_ = 0;
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
      if (status == Status::kIncomplete && !last && size_t(end() - p) < kLargestHeader) {
        enough_ = 2 * size_t(end() - p);  // not to look at a long member again with every piece of it
        return;
      }
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
      if (*p == '{') {
        known_events(p);
        move_to(p);
      }
      const char* const begin = p;
      const Written before{raw.start.size(), raw.flows, raw.args.row.size(), raw.gpu_annotations.size()};
      Status status = *p == '{' ? one_event(p) : Status::kDamaged;
      move_to(p);
      if (status == Status::kOk) {
        if (p < end() && *p == '{' && !last_notes_) learn_event(begin, p, before);
        continue;
      }
      if (status == Status::kIncomplete && !last && size_t(end() - p) < kLargestEvent) return;
      if (!resync(p, status == Status::kIncomplete, last)) return;
      p = buffer_.data() + at_;
    }
  }

  // Reads an event from its brace; `p` is left behind it, at the brace of the next if that follows.
  Status one_event(const char*& p) {
    const char* q = p;
    uint32_t slot = 0;  // 0: before the first value of an event
    bool in_args = false;
    event_.clear();
    Separator* before = nullptr;  // what led to the last value, if that was learned
    const Token* value = nullptr;  // the last one
    uint32_t code = kNullU32;
    for (;;) {
      Step walked;
      const Step* step = &walked;
      Separator* const learned = match(slot, q);
      if (learned) {
        if (before && before->other < kOtherTimes) {
          if (const Separator* made = watch(*before, *value, code, *learned)) add(before_slot_, *made, learned);
        }
        for (uint8_t i = 0; i < learned->constants; ++i) {
          const Constant& each = learned->constant[i];
          const Status status = pass(each.step, p, q);
          if (status != Status::kOk || each.step.ends_event) return status;
          keep(each, q);
        }
        step = &learned->step;
      } else {
        const Status status = walk(slot, in_args, q, walked);
        if (status != Status::kOk) return status;
      }
      const Status passed = pass(*step, p, q);
      if (passed != Status::kOk) return passed;
      if (step->ends_event) {
        if (!step->next_event) p = q + step->length;
        return Status::kOk;
      }
      q = skip_space(q + step->length, end());  // a learned separator may be followed by more space than it had
      if (q == end()) return Status::kIncomplete;
      in_args = step->in_args;
      const uint32_t key = step->key;
      code = kNullU32;
      const Status status = in_args ? argument_value(key, q, value, code) : field_value(EventKey(key), q, value);
      if (status != Status::kOk) return status;
      before = learned && !event_.notes ? learned : nullptr;
      before_slot_ = slot;
      slot = 1 + (in_args ? uint32_t(kEventKeyCount) : 0u) + key;
    }
  }

  Status any_value(const char*& q, Token& token) {
    if (is_digit(*q)) return scan_word(q, end(), event_.notes, &token);
    return scan_value(q, end(), event_.notes, &token);
  }

  Status argument_value(uint32_t key, const char*& q, const Token*& value, uint32_t& code) {
    if (key == kDropped) {
      value = &dropped_;
      const Status status = any_value(q, dropped_);
      if (status != Status::kOk || dropped_.type != Type::kContainer) return status;
      return check_container(dropped_, 2);
    }
    Argument& argument = event_.args.add();
    value = &argument.token;
    argument.key = key;
    argument.notes = 0;
    if (*q == '[') {
      argument.guess = guess_slot(key);
      if (!known_container(q, argument.token, code, argument.guess)) {
        const Status status = scan_value(q, end(), event_.notes, &argument.token);
        if (status != Status::kOk) return status;
      }
    } else {
      argument.guess = 0;
      const Status status = any_value(q, argument.token);
      if (status != Status::kOk) return status;
    }
    argument.code = code;
    note(argument);
    return Status::kOk;
  }

  Status field_value(EventKey key, const char*& q, const Token*& value) {
    Token& token = event_.field[key];
    value = &token;
    if (key != kName) {
      const Status status = any_value(q, token);
      if (status != Status::kOk) return status;
    } else if (!(*q == '"' && known_name(q, token))) {
      const Status status = any_value(q, token);
      if (status != Status::kOk) return status;
      event_.name = token.type == Type::kString ? raw.names.find('s', token.text, token.length) : kNullU32;
    }
    if (token.type == Type::kContainer) {
      const Status status = check_container(token, 1);
      if (status != Status::kOk) return status;
    }
    if (key == kArgs && !clear_args()) return Status::kDamaged;
    event_.seen |= 1u << key;
    return Status::kOk;
  }

  // What is known of an argument's key and list besides its value.
  void note(const Argument& argument) {
    if (argument.token.type == Type::kContainer) {
      event_.unknown += argument.code == kNullU32;
      event_.list = argument.code + 1;
    }
    const uint64_t key = uint64_t(1) << (argument.key & 63);
    event_.repeated |= (event_.keys & key) != 0;
    event_.keys |= key;
  }

  // A value within a separator.
  void keep(const Constant& constant, const char* q) {
    const uint32_t key = constant.step.key;
    if (!constant.step.in_args) {
      set(event_.field[key], q + constant.offset, constant.length, constant.type);
      event_.seen |= 1u << key;
      if (key == kName) event_.name = kNullU32;
    } else if (key != kDropped) {
      Argument& argument = event_.args.add();
      argument.key = key;
      argument.code = constant.code;
      set(argument.token, q + constant.offset, constant.length, constant.type);
      argument.guess = 0;
      argument.notes = 0;
      note(argument);
    }
  }

  // What a step means besides the value that it leads to.
  Status pass(const Step& step, const char*& p, const char* q) {
    if (step.clears_args && !clear_args()) return Status::kDamaged;
    if (!step.ends_event) return Status::kOk;
    const Status status = commit(offset_of(p));
    if (status != Status::kOk) return status;
    last_notes_ = event_.notes;
    event_.clear();
    if (step.next_event) p = q + step.brace;
    return Status::kOk;
  }

  // Other arguments follow, and the last ones count; those before them must be sound all the same.
  bool clear_args() {
    const bool sound = check_args() == Status::kOk;
    event_.clear_args();
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

  // Where a guess is kept: by the names of this event and of those before it, and by what else tells it.
  uint32_t place_of(uint64_t names, uint64_t what, unsigned bits) const {
    uint64_t hash = names * 0x9E3779B97F4A7C15ull ^ what * 0xC2B2AE3D27D4EB4Full;
    hash ^= hash >> 32;
    return uint32_t(hash * 0x9FB21C651E98DF25ull >> (64 - bits));
  }

  // Shapes and types repeat: a list is first compared with the one that stood here the last time.
  uint32_t guess_slot(uint32_t key) const {
    return place_of(uint64_t(event_.name) << 32 | (names_before_ & 0xFFFF), uint64_t(event_.list) << 32 | key, kGuessBits);
  }
  bool known_container(const char*& q, Token& token, uint32_t& code, uint32_t slot) const {
    const uint32_t guess = containers_[slot];
    if (guess == kNullU32) return false;
    const size_t length = raw.texts.length(guess) - 1;
    if (size_t(end() - q) <= length || std::memcmp(q, raw.texts.text(guess) + 1, length) != 0) return false;
    set(token, q, length, Type::kContainer);
    code = guess;
    q += length;
    return true;
  }

  // A name is first compared with the one that came after the last eight, then with the one after the last two.
  bool known_name(const char*& q, Token& token) {
    return same_name(names_after_[place_of(names_before_, 0, kGuessBits)], q, token) ||
           same_name(names_after_[place_of(names_before_ & 0xFFFF, 1, kGuessBits)], q, token);
  }
  bool same_name(uint32_t guess, const char*& q, Token& token) {
    if (guess == kNullU32) return false;
    const size_t length = raw.names.length(guess) - 1;
    if (size_t(end() - q) <= length + 2 || q[length + 1] != '"' || q[length + 2] != ',' ||
        std::memcmp(q + 1, raw.names.text(guess) + 1, length) != 0) {
      return false;
    }
    set(token, q + 1, length, Type::kString);
    event_.name = guess;
    q += length + 2;
    return true;
  }
  void remember_name(uint32_t code) {
    if (!event_.notes) {
      names_after_[place_of(names_before_, 0, kGuessBits)] = code;
      names_after_[place_of(names_before_ & 0xFFFF, 1, kGuessBits)] = code;
    }
    names_before_ = names_before_ << 8 | (code * 0x9E3779B1u >> 24);
  }

  // The longest separator that stands at `q`; that which came here the last time is tried first.
  Separator* match(uint32_t slot, const char* q) {
    if (slot >= learned_.size()) return nullptr;
    Learned& learned = learned_[slot];
    const size_t count = learned.separators.size();
    if (!count) return nullptr;
    Separator* const all = learned.separators.data();
    uint8_t& place = separators_after_[place_of(uint64_t(event_.name) << 32 | (names_before_ & 0xFFFF), slot, kGuessBits)];
    const size_t guess = place;
    size_t found = guess < count && matches(all[guess], q) ? guess : count;
    if (found == count || all[found].longer) {
      for (size_t i = 0; i < count; ++i) {
        if (i != guess && (found == count || all[i].step.length > all[found].step.length) && matches(all[i], q)) found = i;
      }
      if (found == count) return nullptr;
    }
    place = uint8_t(found);
    ++all[found].hits;
    return &all[found];
  }

  bool matches(const Separator& separator, const char* q) const {
    const size_t length = separator.step.length;
    if (size_t(end() - q) <= length) return false;
    if (length < 8) return std::memcmp(q, separator.text, length) == 0;
    if (load8(q + length - 8) != separator.tail) return false;
    size_t i = 0;
    for (; i + 8 < length; i += 8) {
      if (load8(q + i) != load8(separator.text + i)) return false;
    }
    return true;
  }

  static void set_tail(Separator& separator) {
    if (separator.step.length >= 8) separator.tail = load8(separator.text + separator.step.length - 8);
  }

  void learn(uint32_t slot, const char* q, const Step& step) {
    if (step.length > kLongestSeparator || slot >= learned_.size()) return;
    made_ = Separator{};
    std::memcpy(made_.text, q, step.length);
    made_.step = step;
    set_tail(made_);
    add(slot, made_);
  }

  // Into a free place, else into that of the one which was met least.
  void add(uint32_t slot, const Separator& made, const Separator* in_use = nullptr) {
    Learned& learned = learned_[slot];
    std::vector<Separator>& all = learned.separators;
    size_t at = all.size();
    if (at < kMostSeparators) {
      if (all.capacity() < kMostSeparators) all.reserve(kMostSeparators);
      all.push_back(made);
    } else {
      for (size_t i = 0; i < all.size(); ++i) {
        if (&all[i] != in_use && (at == all.size() || all[i].hits < all[at].hits)) at = i;
      }
      for (Separator& each : all) each.hits /= 2;
      all[at] = made;
    }
    all[at].hits = 8;  // it must have the time to be met again
    for (Separator& each : all) {
      const auto begins = [](const Separator& a, const Separator& b) {
        return a.step.length < b.step.length && !std::memcmp(a.text, b.text, a.step.length);
      };
      if (begins(all[at], each)) all[at].longer = true;
      if (begins(each, all[at])) each.longer = true;
    }
  }

  // Looks whether the value between two separators is always the same; if so, makes one of the three.
  const Separator* watch(Separator& before, const Token& value, uint32_t code, const Separator& behind) {
    const bool text = value.type == Type::kString, list = value.type == Type::kContainer;
    if (value.length > kLongestConstant || (list && (code == kNullU32 || !before.step.in_args))) {
      ++before.other;
      return nullptr;
    }
    if (value.length != before.value_length || std::memcmp(value.text, before.value, value.length)) {
      std::memcpy(before.value, value.text, value.length);
      before.value_length = uint8_t(value.length);
      before.same = 0;
      ++before.other;
      return nullptr;
    }
    if (++before.same < kSameTimes) return nullptr;
    before.same = before.other = 0;
    const uint32_t offset = before.step.length + text;                // of the value
    const uint32_t from = offset + value.length + text;               // of what stands behind it
    const size_t constants = size_t(before.constants) + 1 + behind.constants;
    if (from + behind.step.length > kLongestSeparator || constants > kMostConstants) {
      before.other = kOtherTimes;
      return nullptr;
    }
    made_ = before;
    made_.constant[made_.constants++] = Constant{before.step, offset, value.length, code, value.type};
    std::memcpy(made_.text + before.step.length, value.text - text, value.length + 2 * text);
    std::memcpy(made_.text + from, behind.text, behind.step.length);
    for (uint8_t i = 0; i < behind.constants; ++i) {
      Constant& moved = made_.constant[made_.constants++] = behind.constant[i];
      moved.step.brace += from;
      moved.offset += from;
    }
    made_.step = behind.step;
    made_.step.brace += from;
    made_.step.length += from;
    made_.same = made_.other = made_.value_length = 0;
    made_.longer = false;
    set_tail(made_);
    return &made_;
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

  const std::string& key_text(uint32_t key) { return key >= kArgCount ? key_names_[key - kArgCount] : raw_key_[key]; }

  uint32_t key_code(uint32_t key) {
    const std::string& text = key_text(key);
    return raw.texts.intern('s', text.data(), text.size());
  }

  // As above, without keeping the name: that of an argument without a value is none of the recording's texts.
  uint32_t find_key(uint32_t key) {
    const std::string& text = key_text(key);
    return raw.texts.find('s', text.data(), text.size());
  }

  // --- events of a known shape -------------------------------------------------------------------------------

  // How a number is written that may differ from one event to the next.
  enum class Form : uint8_t { kEnd, kUnsigned, kSigned, kTime, kAny };
  struct Piece {
    uint32_t length;  // of the text before the number
    Form form;
    uint8_t target;   // which number of the template it is
  };
  struct GeneralArg {
    uint32_t key;
    uint8_t type, number;  // 0: it has the value of the template
    int64_t value;
  };
  static constexpr uint8_t kStartNumber = kArgCount, kDurationNumber = kArgCount + 1, kIgnoredNumber = kArgCount + 2;
  static constexpr uint8_t kFirstExtra = kArgCount + 3, kMostExtras = 8, kNumberCount = kFirstExtra + kMostExtras;
  struct Template {
    std::string text;  // that of all pieces
    std::vector<Piece> pieces;
    size_t longest = 0;  // bytes that an event of this shape may have
    bool flow = false;
    uint8_t kind = 0;
    uint32_t lane = 0, name = 0;
    uint32_t text_code[5] = {};
    int32_t grid[3] = {}, block[3] = {};
    double real[3] = {};
    int64_t number[kNumberCount] = {};  // by Arg, and the others
    std::vector<GeneralArg> args;
  };
  // How much was written before an event.
  struct Written {
    size_t rows;
    int64_t flows;
    size_t args, gpu_annotations;
  };
  static constexpr size_t kMostTemplates = 4096;
  static constexpr size_t kLongestTemplate = 8192;
  static constexpr uint32_t kTemplateCost = 4;  // to look for one costs as much as so many matches save
  static constexpr uint32_t kTemplateCredit = 4 * 4096;

  void known_events(const char*& p);
  const char* match_template(Template& shape, const char* q);
  static const char* read_number(const char* p, Form form, int64_t& result);
  const char* less_likely(const char* p, uint32_t& number);
  uint16_t* const* places_after();
  void follow_shape(uint32_t number);
  void commit_known(const Template& shape);
  void keep_last_row(Template& shape) const;
  static Form integer_form(const Token& token, bool may_be_negative);
  static Form form_of(uint32_t key, const Token& token, const Template& shape, uint8_t& target);
  void learn_event(const char* begin, const char* next, const Written& before);
  uint32_t number_of_shape(const char* begin, const char* next, bool flow, const Written& before);
  bool cut_numbers(const char* begin, const char* next, const Written& before);

  std::vector<Template> templates_;
  std::unordered_map<std::string, uint32_t> template_numbers_;
  Template new_template_;
  static constexpr size_t kNamesakes = 8;
  struct Namesakes {
    uint16_t number[kNamesakes] = {};
    uint32_t next = 0;
  };
  std::unordered_map<uint64_t, Namesakes> templates_of_;  // the last ones of a name
  static constexpr int kShapeGuesses = 4;
  static constexpr unsigned kFarBits = 15;
  static constexpr size_t kFarShapes = size_t(1) << kFarBits;
  std::vector<uint16_t> shapes_after_ = std::vector<uint16_t>(kFarShapes + (size_t(1) << 13), uint16_t(kMostTemplates));
  uint16_t* place_after_[kShapeGuesses] = {};
  uint64_t shapes_before_ = 0;  // four bits and more for each of the last sixteen
  uint32_t last_shapes_ = 0;    // the last two
  uint32_t template_credit_ = kTemplateCredit / 4;
  uint8_t last_notes_ = 0;

  // --- one event -------------------------------------------------------------------------------------------

  Status commit(int64_t offset);
  Status commit_span(const Token& category, int64_t offset, int64_t at, uint32_t lane);
  Status commit_memory(int64_t at, uint32_t lane);
  Status check_args();
  bool worth_keeping(const Argument& argument, uint8_t kind) const;
  void intern_args(uint8_t kind);
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
    if (event_.name != kNullU32) return event_.name;
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
  size_t enough_ = 0;  // bytes in the buffer that it takes to go on with a member of the document
  int64_t consumed_ = 0;  // bytes of the file before the buffer
  int64_t resync_work_ = 0;
  State state_ = State::kStart;
  bool bare_ = false;
  Event event_;
  static constexpr unsigned kGuessBits = 13;  // few enough to stay close to the processor
  std::vector<uint32_t> containers_ = std::vector<uint32_t>(1 << kGuessBits, kNullU32);
  std::vector<uint32_t> names_after_ = std::vector<uint32_t>(1 << kGuessBits, kNullU32);
  std::vector<uint8_t> separators_after_ = std::vector<uint8_t>(1 << kGuessBits, 0);
  uint64_t names_before_ = 0;  // a byte for each of the last eight
  std::vector<Learned> learned_;
  Separator made_;
  Token dropped_;  // the last value that no one wants
  uint32_t before_slot_ = 0;
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
  uint32_t last_lane_number_ = kNullU32;
  Seen last_process_, last_thread_, last_category_;
  uint32_t last_category_code_ = 0;

  friend void merge(Scanner& into, Scanner& from);
};

}  // namespace foretrace
