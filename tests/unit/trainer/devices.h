// Devices for the trainer's tests: a CPU that behaves like a GPU in one respect.
#pragma once

#include "tests/support/operator_recorder.h"
#include "tests/support/wrapped_runtime.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace nsa::train {

// A CPU that allows two steps in flight and records graphs, as a GPU does. It notes when values are
// requested and when the host waits for them.
class TwoStepsInFlight : public test::WrappedRuntime {
public:
  using WrappedRuntime::WrappedRuntime;
  int steps_in_flight() const override { return 2; }
  std::unique_ptr<runtime::Reading> read_later(const at::Tensor& values) override {
    events += 'r';
    return std::make_unique<Noted>(WrappedRuntime::read_later(values), events);
  }
  std::string why_no_graphs() const override { return ""; }
  Result<std::unique_ptr<runtime::Recorder>> make_recorder() override {
    if (!records) return fail(ErrorCode::kExhausted, "no recorder on purpose");
    return std::unique_ptr<runtime::Recorder>(std::make_unique<test::OperatorRecorder>());
  }
  std::string events; // r: requested, t: awaited
  bool records = true;

private:
  class Noted : public runtime::Reading {
  public:
    Noted(std::unique_ptr<runtime::Reading> inner, std::string& events)
        : inner_(std::move(inner)), events_(events) {}
    std::vector<double> take() override {
      events_ += 't';
      return inner_->take();
    }

  private:
    std::unique_ptr<runtime::Reading> inner_;
    std::string& events_;
  };
};

// A device with its own clock. Enqueued work takes time that the host does not see; where the host
// waits, its clock catches up. Nothing really sleeps.
class SlowDevice : public test::WrappedRuntime {
public:
  using WrappedRuntime::WrappedRuntime;
  void spend(double seconds) { host_ += seconds; }
  void enqueue(double seconds) { device_ = done() + seconds; }

  int steps_in_flight() const override { return 2; }
  std::unique_ptr<runtime::Reading> read_later(const at::Tensor& values) override {
    return std::make_unique<Late>(WrappedRuntime::read_later(values), done(), host_);
  }
  std::shared_ptr<const runtime::DeviceEvent> record_event() override {
    return std::make_shared<At>(done(), host_);
  }

private:
  // When the enqueued work will be complete.
  double done() const { return std::max(host_, device_); }
  class Late : public runtime::Reading {
  public:
    Late(std::unique_ptr<runtime::Reading> inner, double ready, double& host)
        : inner_(std::move(inner)), ready_(ready), host_(host) {}
    std::vector<double> take() override {
      host_ = std::max(host_, ready_);
      return inner_->take();
    }

  private:
    std::unique_ptr<runtime::Reading> inner_;
    const double ready_;
    double& host_;
  };
  class At : public runtime::DeviceEvent {
  public:
    At(double seconds, const double& host) : seconds_(seconds), host_(host) {}
    double seconds_since(const runtime::DeviceEvent& earlier) const override {
      EXPECT_LE(seconds_, host_) << "asked for before the device has passed it";
      return seconds_ - dynamic_cast<const At&>(earlier).seconds_;
    }

  private:
    const double seconds_;
    const double& host_;
  };
  double host_ = 0, device_ = 0;
};

// A CPU that reports when a checkpoint copies the state.
class NotesCopies : public test::WrappedRuntime {
public:
  using WrappedRuntime::WrappedRuntime;
  void copy_to_host(const at::Tensor& from, std::byte* into) override {
    at_copy();
    WrappedRuntime::copy_to_host(from, into);
  }
  std::function<void()> at_copy;
};

} // namespace nsa::train
