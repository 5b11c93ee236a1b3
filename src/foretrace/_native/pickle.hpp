// A pickle machine for memory snapshots: the operations of plain data and no other, so nothing in a file can run.
// The rules, and their twin in Python, are in ingest/snapshot_columns.py and snapshot_python.py: both fail alike.
#pragma once

#include <charconv>
#include <cmath>
#include <exception>
#include <limits>
#include <string>
#include <vector>

#include "columns.hpp"
#include "snapshot.hpp"

namespace foretrace::snapshots {

constexpr uint64_t kLongestText = 16u << 20;
constexpr int64_t kLongestNumber = 1024;
constexpr uint64_t kTextsAtLeast = 1u << 18, kBytesPerText = 64;
constexpr uint64_t kHeldAtLeast = 1u << 18, kBytesPerValue = 4;

class PickleMachine {
 public:
  // Runs all operations that are whole in the bytes so far. Nothing happens after STOP.
  void push(const char* data, size_t size) {
    if (stopped_ || !size) return;
    if (place_) {  // what is left of the last piece, mostly a few bytes
      const size_t left = buffer_.size() - place_;
      std::memmove(buffer_.data(), buffer_.data() + place_, left);
      buffer_.resize(left);
      before_ += place_;
      place_ = 0;
    }
    const size_t held = buffer_.size();
    buffer_.resize(held + size);
    std::memcpy(buffer_.data() + held, data, size);
    while (!stopped_) {
      at_ = before_ + place_;
      next_ = buffer_.data() + place_;
      if (!step()) return;  // an operation that is not whole yet had no effect
      place_ = size_t(next_ - buffer_.data());
      const uint64_t held_values = stack_.size() + marks_.size() + memo_count_ + records.kept + records.slots.size();
      if (!stopped_ && held_values > kHeldAtLeast + at_ / kBytesPerValue) {
        fail("it holds more values than a snapshot of this size");
      }
    }
  }

  void finish() {
    if (!stopped_) throw SnapshotFault("the pickle breaks off: what it says next is missing", before_ + buffer_.size());
  }

  bool stopped() const { return stopped_; }
  uint64_t at() const { return at_; }
  Value root() const { return root_; }

  Records records;

 private:
  [[noreturn]] void fail(const std::string& says) const { throw SnapshotFault(says, at_); }

  const char* end() const { return buffer_.data() + buffer_.size(); }
  bool has(uint64_t count) const { return uint64_t(end() - next_) >= count; }
  template <class T>
  T little(const char* from) const {
    T value = 0;
    for (size_t i = 0; i < sizeof(T); ++i) value |= T(T(uint8_t(from[i])) << (8 * i));
    return value;
  }

  // One operation; false if its bytes are not all there.
  bool step() {
    if (!has(1)) return false;
    const uint8_t code = uint8_t(*next_++);
    switch (code) {
      case '(': marks_.push(uint64_t(stack_.size())); return true;
      case 'N': push_value(kNone); return true;
      case 0x88: push_value(kTrue); return true;
      case 0x89: push_value(kFalse); return true;
      case 'J': return number<uint32_t>([&](uint32_t value) { push_value(records.integer(int32_t(value))); });
      case 'K': return number<uint8_t>([&](uint8_t value) { push_value(records.integer(value)); });
      case 'M': return number<uint16_t>([&](uint16_t value) { push_value(records.integer(value)); });
      case 'G': return binary_float();
      case 'I': return line([&](const char* text, size_t length) { decimal(text, length, false); });
      case 'L': return line([&](const char* text, size_t length) { decimal(text, length, true); });
      case 'F': return line([&](const char* text, size_t length) { real(text, length); });
      case 0x8a: return counted<uint8_t>([&](uint64_t count) { return long_of(int64_t(count)); });
      case 0x8b: return counted<uint32_t>([&](uint64_t count) { return long_of(int32_t(uint32_t(count))); });
      case 'V': return line([&](const char* text, size_t length) { unicode(text, length); });
      case 0x8c: return counted<uint8_t>([&](uint64_t count) { return text_of(count); });
      case 'X': return counted<uint32_t>([&](uint64_t count) { return text_of(count); });
      case 0x8d: return counted<uint64_t>([&](uint64_t count) { return text_of(count); });
      case '}': push_value(records.node(Kind::kOpenDict)); return true;
      case ']': push_value(records.node(Kind::kOpenList)); return true;
      case ')': tuple(0); return true;
      case 0x85: tuple(1); return true;
      case 0x86: tuple(2); return true;
      case 0x87: tuple(3); return true;
      case 't': tuple(stack_.size() - mark()); return true;
      case 'l': list(); return true;
      case 'd': dict(); return true;
      case 'a': append(top(2) + 1); return true;
      case 'e': append(mark()); return true;
      case 's': set_items(top(3) + 1); return true;
      case 'u': set_items(mark()); return true;
      case 'p': return line([&](const char* text, size_t length) { put(index(text, length)); });
      case 'q': return number<uint8_t>([&](uint8_t value) { put(value); });
      case 'r': return number<uint32_t>([&](uint32_t value) { put(value); });
      case 0x94: put(memo_count_); return true;
      case 'g': return line([&](const char* text, size_t length) { get(index(text, length)); });
      case 'h': return number<uint8_t>([&](uint8_t value) { get(value); });
      case 'j': return number<uint32_t>([&](uint32_t value) { get(value); });
      case 0x80: return number<uint8_t>([&](uint8_t value) {
          if (value > 5) fail("protocol " + std::to_string(value) + " of pickle is not known");
        });
      case 0x95: return number<uint64_t>([&](uint64_t length) {
          const uint64_t here = place_of(next_);
          frame_began_ = at_;
          frame_ends_ = length > UINT64_MAX - here ? UINT64_MAX : here + length;
        });
      case '.': stop(); return true;
      default: refuse(code);
    }
  }

  uint64_t place_of(const char* p) const { return before_ + uint64_t(p - buffer_.data()); }

  [[noreturn]] void refuse(uint8_t code) const {
    struct Named {
      uint8_t code;
      const char* name;
    };
    static const Named kNamed[] = {
        {'0', "POP"},           {'1', "POP_MARK"},         {'2', "DUP"},           {'P', "PERSID"},
        {'Q', "BINPERSID"},     {'R', "REDUCE"},           {'S', "STRING"},        {'T', "BINSTRING"},
        {'U', "SHORT_BINSTRING"}, {'b', "BUILD"},          {'c', "GLOBAL"},        {'i', "INST"},
        {'o', "OBJ"},           {'B', "BINBYTES"},         {'C', "SHORT_BINBYTES"}, {0x81, "NEWOBJ"},
        {0x82, "EXT1"},         {0x83, "EXT2"},            {0x84, "EXT4"},         {0x8e, "BINBYTES8"},
        {0x8f, "EMPTY_SET"},    {0x90, "ADDITEMS"},        {0x91, "FROZENSET"},    {0x92, "NEWOBJ_EX"},
        {0x93, "STACK_GLOBAL"}, {0x96, "BYTEARRAY8"},      {0x97, "NEXT_BUFFER"},  {0x98, "READONLY_BUFFER"}};
    for (const Named& named : kNamed) {
      if (named.code == code) {
        fail(std::string("the operation ") + named.name + " is none of a snapshot; nothing was loaded");
      }
    }
    static const char kDigits[] = "0123456789abcdef";
    const std::string hex{kDigits[code >> 4], kDigits[code & 15]};
    fail("the byte 0x" + hex + ", which is no operation, is none of a snapshot; nothing was loaded");
  }

  // --- values ----------------------------------------------------------------------------------------------------

  void push_value(Value value) { stack_.push(value); }

  template <class T, class Work>
  bool number(Work work) {
    if (!has(sizeof(T))) return false;
    const T value = little<T>(next_);
    next_ += sizeof(T);
    work(value);
    return true;
  }

  // A length, then `work` for that many bytes: it says whether they are there.
  template <class T, class Work>
  bool counted(Work work) {
    if (!has(sizeof(T))) return false;
    const T count = little<T>(next_);
    next_ += sizeof(T);
    return work(count);
  }

  template <class Work>
  bool line(Work work) {
    const size_t left = size_t(end() - next_);
    const void* found = left ? std::memchr(next_, '\n', left) : nullptr;
    const size_t length = found ? size_t(static_cast<const char*>(found) - next_) : left;
    if (length > kLongestText) fail("a line is longer than 16 MiB");
    if (!found) return false;
    const char* text = next_;
    next_ += length + 1;
    work(text, length);
    return true;
  }

  bool binary_float() {
    if (!has(8)) return false;
    uint64_t bits = 0;
    for (int i = 0; i < 8; ++i) bits = bits << 8 | uint8_t(next_[i]);
    next_ += 8;
    double value;
    std::memcpy(&value, &bits, 8);
    push_value(records.real(value));
    return true;
  }

  static size_t digits_of(const char* text, size_t length) {
    size_t count = 0;
    while (count < length && text[count] >= '0' && text[count] <= '9') ++count;
    return count;
  }

  void decimal(const char* text, size_t length, bool is_long) {
    if (!is_long && length == 2 && text[0] == '0' && (text[1] == '0' || text[1] == '1')) {
      push_value(text[1] == '1' ? kTrue : kFalse);
      return;
    }
    if (is_long && length && text[length - 1] == 'L') --length;
    const bool negative = length && text[0] == '-';
    text += negative;
    length -= negative;
    if (!length || length > 1000 || digits_of(text, length) != length) fail("a number cannot be read");
    uint64_t magnitude = 0;
    bool huge = false;
    for (size_t i = 0; i < length; ++i) {
      const uint64_t digit = uint64_t(text[i] - '0');
      huge |= magnitude > (UINT64_MAX - digit) / 10;
      magnitude = magnitude * 10 + digit;
    }
    push_value(records.integer(negative, magnitude, huge));
  }

  void real(const char* text, size_t length) {
    const char* p = text;
    const char* const stop = text + length;
    const bool negative = p < stop && *p == '-';
    p += negative;
    const size_t left = size_t(stop - p);
    double value = 0;
    if (left == 3 && !std::memcmp(p, "inf", 3)) {
      value = std::numeric_limits<double>::infinity();
    } else if (left == 3 && !std::memcmp(p, "nan", 3)) {
      value = std::numeric_limits<double>::quiet_NaN();
    } else {
      const char* const digits = p;
      bool sound = true;
      size_t count = digits_of(p, left);
      sound = count >= 1 && count <= 400;
      p += count;
      if (p < stop && *p == '.') {
        ++p;
        count = digits_of(p, size_t(stop - p));
        sound &= count <= 400;
        p += count;
      }
      if (p < stop && *p == 'e') {
        ++p;
        if (p < stop && (*p == '-' || *p == '+')) ++p;
        count = digits_of(p, size_t(stop - p));
        sound &= count >= 1 && count <= 5;
        p += count;
      }
      if (!sound || p != stop) fail("a number cannot be read");
      const std::string copy(digits, size_t(stop - digits));
      bool read = false;
#if defined(__cpp_lib_to_chars) && __cpp_lib_to_chars >= 201611L
      read = std::from_chars(copy.data(), copy.data() + copy.size(), value).ec == std::errc();
#endif
      if (!read) value = std::strtod(copy.c_str(), nullptr);
    }
    push_value(records.real(negative ? -value : value));
  }

  bool long_of(int64_t length) {
    if (length < 0 || length > kLongestNumber) fail("a number claims " + std::to_string(length) + " bytes");
    if (!has(uint64_t(length))) return false;
    const char* text = next_;
    next_ += length;
    const bool negative = length && (text[length - 1] & 0x80);
    const uint8_t filler = negative ? 0xFF : 0;
    while (length && uint8_t(text[length - 1]) == filler) --length;
    uint64_t bits = negative ? UINT64_MAX : 0;
    for (int64_t i = length < 8 ? length : 8; i-- > 0;) bits = bits << 8 | uint8_t(text[i]);
    // A negative number of 64 bits that do not begin with 1 lies below what 64 bits hold.
    const bool huge = length > 8 || (negative && length == 8 && !(bits >> 63));
    push_value(records.integer(negative, negative ? ~bits + 1 : bits, huge));
    return true;
  }

  static void put_utf8(std::string& into, uint32_t point) {
    if (point < 0x80) {
      into.push_back(char(point));
    } else if (point < 0x800) {
      into.push_back(char(0xC0 | point >> 6));
      into.push_back(char(0x80 | (point & 63)));
    } else if (point < 0x10000) {
      into.push_back(char(0xE0 | point >> 12));
      into.push_back(char(0x80 | (point >> 6 & 63)));
      into.push_back(char(0x80 | (point & 63)));
    } else {
      into.push_back(char(0xF0 | point >> 18));
      into.push_back(char(0x80 | (point >> 12 & 63)));
      into.push_back(char(0x80 | (point >> 6 & 63)));
      into.push_back(char(0x80 | (point & 63)));
    }
  }

  // The number of an escape's `count` hexadecimal digits, or UINT32_MAX.
  static uint32_t hexadecimal(const char* text, size_t left, size_t count) {
    if (left < count) return UINT32_MAX;
    uint64_t value = 0;
    for (size_t i = 0; i < count; ++i) {
      const char c = text[i];
      const int digit = c >= '0' && c <= '9'   ? c - '0'
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                               : -1;
      if (digit < 0) return UINT32_MAX;
      value = value << 4 | uint64_t(digit);
    }
    return value > 0x10FFFF ? 0x110000 : uint32_t(value);
  }

  // A line of Latin-1 with escapes, as UTF-8.
  void unicode(const char* text, size_t length) {
    std::string plain;
    for (size_t i = 0; i < length; ++i) {
      if (text[i] == '\\' && i + 1 < length && (text[i + 1] == 'u' || text[i + 1] == 'U')) {
        const size_t count = text[i + 1] == 'u' ? 4 : 8;
        const uint32_t point = hexadecimal(text + i + 2, length - i - 2, count);
        if (point == 0x110000) fail("a text cannot be read");
        if (point != UINT32_MAX) {
          put_utf8(plain, point);
          i += 1 + count;
          continue;
        }
      }
      put_utf8(plain, uint8_t(text[i]));
    }
    add_text(plain.data(), plain.size());
  }

  bool text_of(uint64_t length) {
    if (length > kLongestText) {
      fail("a text claims " + std::to_string(length) + " bytes; the longest that is read has " +
           std::to_string(kLongestText));
    }
    if (!has(length)) return false;
    add_text(next_, size_t(length));
    next_ += length;
    return true;
  }

  void add_text(const char* text, size_t length) {
    push_value(records.text(text, length));
    if (records.texts.size() > kTextsAtLeast + at_ / kBytesPerText) {
      fail("it holds more texts than a snapshot of this size");
    }
  }

  // --- containers ------------------------------------------------------------------------------------------------

  // Where the values since the last mark begin.
  size_t mark() {
    if (marks_.empty()) fail("a mark is missing");
    const size_t start = size_t(marks_.back());
    marks_.pop();
    return start;
  }
  size_t floor() const { return marks_.empty() ? 0 : size_t(marks_.back()); }
  // Where the top `count` values begin.
  size_t top(size_t count) const {
    if (stack_.size() < floor() + count) fail("a value is missing");
    return stack_.size() - count;
  }

  // The list or dictionary that the values from `start` on go into.
  Value under(size_t start, Kind kind) const {
    const Value value = start > floor() ? stack_[start - 1] : kNone;
    const Kind found = is_node(value) ? records.kind(value) : kind;
    const bool open = found == Kind::kOpenList || found == Kind::kOpenDict;
    if (!is_node(value) || (open && found != kind)) {
      fail(std::string("there is no ") + (kind == Kind::kOpenList ? "list" : "dictionary") + " to add to");
    }
    if (!open) fail("it adds to what is already complete");
    return value;
  }

  void complete(size_t from) {
    for (size_t i = from; i < stack_.size(); ++i) {
      if (is_node(stack_[i])) records.complete(stack_[i], at_);
    }
  }

  void complete_all(size_t from, Value into) {
    complete(from);
    const Kind kind = records.kind(into);
    if (kind != Kind::kOpenList && kind != Kind::kOpenDict) fail("it puts a value into itself");
  }

  void cut(size_t start) { stack_.resize(start); }

  void tuple(size_t count) {
    const size_t start = top(count);
    complete(start);
    const Value node = records.node(Kind::kOpenList);
    records.extend(node, stack_.data() + start, count);
    cut(start);
    records.complete(node, at_);
    push_value(node);
  }

  void list() {
    const size_t start = mark();
    complete(start);
    const Value node = records.node(Kind::kOpenList);
    records.extend(node, stack_.data() + start, stack_.size() - start);
    cut(start);
    push_value(node);
  }

  void dict() {
    const size_t start = mark();
    push_value(kNone);
    for (size_t i = stack_.size() - 1; i > start; --i) stack_[i] = stack_[i - 1];
    stack_[start] = records.node(Kind::kOpenDict);
    set_items(start + 1);
  }

  void append(size_t start) {
    const Value node = under(start, Kind::kOpenList);
    complete_all(start, node);
    records.extend(node, stack_.data() + start, stack_.size() - start);
    cut(start);
  }

  void set_items(size_t start) {
    const Value node = under(start, Kind::kOpenDict);
    const size_t count = stack_.size() - start;
    if (count % 2) fail("a key has no value");
    complete_all(start, node);
    // One operation sets up to 1,000 items: a record is then whole, and its dictionary need not be kept.
    if (count <= 2 || !records.make(node, stack_.data() + start, count, at_)) {
      records.extend(node, stack_.data() + start, count);
    }
    cut(start);
  }

  // --- memo ------------------------------------------------------------------------------------------------------

  uint64_t index(const char* text, size_t length) const {
    if (!length || length > 18 || digits_of(text, length) != length) fail("a number of the memo cannot be read");
    uint64_t value = 0;
    for (size_t i = 0; i < length; ++i) value = value * 10 + uint64_t(text[i] - '0');
    return value;
  }

  void put(uint64_t index) {
    if (index > memo_count_ + 1) {
      fail("the memo's number " + std::to_string(index) + " is more than there can be");
    }
    const Value value = stack_[top(1)];
    while (memo_.size() <= index) memo_.push(kAbsent);
    memo_count_ += memo_[size_t(index)] == kAbsent;
    memo_[size_t(index)] = value;
  }

  void get(uint64_t index) {
    if (index >= memo_.size() || memo_[size_t(index)] == kAbsent) {
      fail("the memo has no number " + std::to_string(index));
    }
    push_value(memo_[size_t(index)]);
  }

  void stop() {
    if (frame_ends_ > place_of(next_)) throw SnapshotFault("a frame claims more bytes than there are", frame_began_);
    if (!marks_.empty() || stack_.size() != 1) {
      fail(std::to_string(stack_.size()) + " values are left where one should be");
    }
    root_ = stack_[0];
    if (is_node(root_)) records.complete(root_, at_);
    stopped_ = true;
    memo_.release();
    stack_.release();
    marks_.release();
  }

  Column<char> buffer_;
  size_t place_ = 0;
  uint64_t before_ = 0, at_ = 0;  // bytes before the buffer; where the operation that runs begins
  const char* next_ = nullptr;
  Column<Value> stack_, memo_;
  Column<uint64_t> marks_;
  uint64_t memo_count_ = 0;
  uint64_t frame_began_ = 0, frame_ends_ = 0;
  bool stopped_ = false;
  Value root_ = kAbsent;
};

}  // namespace foretrace::snapshots
