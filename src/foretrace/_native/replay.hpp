// The replay loop: the same machine as predict/replay.py, which says what it does.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace foretrace {

enum CallKind : uint8_t { kCallNone, kCallLaunch, kCallSync, kCallBlockingCopy, kCallRecord, kCallWait };

struct ReplayInput {
  size_t calls = 0, streams = 0, pending = 0, steps = 0;
  const int64_t *gap = nullptr, *base = nullptr, *wake = nullptr;
  const uint8_t* kind = nullptr;
  const int32_t *stream = nullptr, *task_from = nullptr, *task_stream = nullptr, *step_calls = nullptr;
  const int64_t *task_dur = nullptr, *task_latency = nullptr, *task_gap = nullptr, *task_after_ns = nullptr;
  const int32_t* task_after = nullptr;
  const int64_t *stream_free = nullptr, *pending_ends = nullptr;
  int64_t tail_gap = 0, queue_calls = 0, tiles = 1;
};

struct ReplayOutput {
  std::vector<int64_t> call_end, task_start, task_end;  // of the last tile
  std::vector<int64_t> step_host, step_device;          // of every step of every tile
  int64_t host = 0, device = 0;
};

inline void run_replay(const ReplayInput& in, ReplayOutput& out) {
  constexpr int64_t kNever = -(int64_t(1) << 60);
  std::vector<int64_t> free(in.stream_free, in.stream_free + in.streams);
  std::vector<int64_t> block(in.streams, kNever);
  std::vector<int64_t> queue(in.pending_ends, in.pending_ends + in.pending);
  const size_t tasks = in.calls ? size_t(in.task_from[in.calls]) : 0;
  out.call_end.resize(in.calls);
  out.task_start.resize(tasks);
  out.task_end.resize(tasks);
  int64_t host = 0, device = 0, event = kNever;
  for (int64_t tile = 0; tile < in.tiles; ++tile) {
    size_t step = 0;
    for (size_t call = 0; call < in.calls; ++call) {
      while (step < in.steps && size_t(in.step_calls[step]) == call) {
        if (step || tile) {
          out.step_host.push_back(host);
          out.step_device.push_back(device);
        }
        ++step;
      }
      host += in.gap[call];
      const uint8_t kind = in.kind[call];
      const int32_t stream = in.stream[call];
      if (kind == kCallLaunch || kind == kCallBlockingCopy) {
        if (int64_t(queue.size()) >= in.queue_calls) {
          host = std::max(host, queue[queue.size() - size_t(in.queue_calls)]);
        }
        int64_t last = host;
        for (int32_t task = in.task_from[call]; task < in.task_from[call + 1]; ++task) {
          const size_t on = size_t(in.task_stream[task]);
          int64_t begin = std::max({host + in.task_latency[task], free[on] + in.task_gap[task], block[on]});
          if (in.task_after[task] >= 0) {
            begin = std::max(begin, out.task_end[size_t(in.task_after[task])] + in.task_after_ns[task]);
          }
          const int64_t end = begin + in.task_dur[task];
          out.task_start[size_t(task)] = begin;
          out.task_end[size_t(task)] = end;
          free[on] = std::max(free[on], end);
          last = std::max(last, end);
        }
        device = std::max(device, last);
        queue.push_back(last);
        host += in.base[call];
        if (kind == kCallBlockingCopy) host = std::max(host, last + in.wake[call]);
      } else if (kind == kCallSync) {
        const int64_t done = stream < 0 ? *std::max_element(free.begin(), free.end()) : free[size_t(stream)];
        const int64_t woken = done > host ? done + in.wake[call] : 0;
        host = std::max(host + in.base[call], woken);
      } else {
        if (kind == kCallRecord) event = free[size_t(stream)];
        if (kind == kCallWait) block[size_t(stream)] = std::max(block[size_t(stream)], event);
        host += in.base[call];
      }
      out.call_end[call] = host;
    }
    host += in.tail_gap;
  }
  out.step_host.push_back(host);
  out.step_device.push_back(device);
  out.host = host;
  out.device = device;
}

}  // namespace foretrace
