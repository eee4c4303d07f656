#include "worker/comm/watched_collectives.h"

namespace nsa::comm {

namespace {

using progress::DeviceWord;

class WatchedCollectives : public Collectives {
public:
  WatchedCollectives(std::unique_ptr<Collectives> inner, progress::Writer& writer, Mark mark)
      : inner_(std::move(inner)), writer_(writer), mark_(std::move(mark)) {}
  Rank rank() const override { return inner_->rank(); }
  int world() const override { return inner_->world(); }

  std::unique_ptr<Pending> all_reduce_sum(const at::Tensor& tensor, Tag tag) override {
    return start(tag, [&] { return inner_->all_reduce_sum(tensor, tag); });
  }
  std::unique_ptr<Pending> reduce_scatter_sum(const at::Tensor& tensor, Tag tag) override {
    return start(tag, [&] { return inner_->reduce_scatter_sum(tensor, tag); });
  }
  std::unique_ptr<Pending> all_gather(const at::Tensor& tensor, Tag tag) override {
    return start(tag, [&] { return inner_->all_gather(tensor, tag); });
  }
  std::unique_ptr<Pending> all_to_all(const at::Tensor& out, const at::Tensor& in, RankRange range,
                                      Tag tag) override {
    return start(tag, [&] { return inner_->all_to_all(out, in, range, tag); });
  }
  Outcome broadcast(const at::Tensor& tensor, Rank root, Tag tag) override {
    const uint64_t number = writer_.enqueue(tag.kind, tag.index);
    return await(number, [&] { return inner_->broadcast(tensor, root, tag); });
  }
  Outcome barrier(Tag tag) override {
    const uint64_t number = writer_.enqueue(tag.kind, tag.index);
    return await(number, [&] { return inner_->barrier(tag); });
  }
  std::string flight_record() const override { return inner_->flight_record(); }
  void shut_down() override { inner_->shut_down(); }

private:
  class WatchedPending : public Pending {
  public:
    WatchedPending(WatchedCollectives& owner, uint64_t number, std::unique_ptr<Pending> inner)
        : owner_(owner), number_(number), inner_(std::move(inner)) {}
    Outcome wait() override {
      return owner_.await(number_, [this] { return inner_->wait(); });
    }

  private:
    WatchedCollectives& owner_;
    uint64_t number_;
    std::unique_ptr<Pending> inner_;
  };

  template <class Begin> std::unique_ptr<Pending> start(const Tag& tag, Begin begin) {
    const uint64_t number = writer_.enqueue(tag.kind, tag.index);
    return std::make_unique<WatchedPending>(*this, number, begin());
  }
  // A failed operation is not marked as completed, so the page shows where this rank stopped.
  // Operations run in the order of their numbers. If a later one has been awaited, all earlier ones
  // have completed.
  template <class Wait> Outcome await(uint64_t number, Wait wait) {
    if (number < completed_) return wait();
    mark_(DeviceWord::kStarted, number);
    Outcome outcome = wait();
    if (outcome) mark_(DeviceWord::kCompleted, completed_ = number);
    return outcome;
  }

  std::unique_ptr<Collectives> inner_;
  progress::Writer& writer_;
  const Mark mark_;
  uint64_t completed_ = 0; // the newest operation that has been awaited
};

} // namespace

std::unique_ptr<Collectives> watch(std::unique_ptr<Collectives> collectives,
                                   progress::Writer& writer, Mark mark) {
  if (collectives->world() == 1) return collectives;
  return std::make_unique<WatchedCollectives>(std::move(collectives), writer, std::move(mark));
}

} // namespace nsa::comm
