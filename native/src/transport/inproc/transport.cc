#include "kf/inproc.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>

#include "kf/error.h"

namespace kf {

namespace {

constexpr std::size_t kCopyBytes = 4096;  // payloads up to this size are copied, not lent

struct Loan {
  std::mutex mutex;
  bool revoked = false;
  std::vector<Region> regions;
  std::vector<std::byte> copy;  // backs `regions` of a small payload
};

struct Item {
  enum class Kind { frame, sent, lost } kind;
  int peer;
  Frame frame;
  std::string text;
  std::shared_ptr<Loan> loan;  // data frames
  std::uint64_t ticket = 0;    // of the sender; 0 with a copied payload means "tell nobody"
  bool lent = false;
};

struct Inbox {
  std::mutex mutex;
  std::condition_variable arrived;
  std::deque<Item> items;
  bool woken = false;
  bool closed = false;
};

// Copies the loan's regions into the delivery's, which have the same total length.
void copy_regions(const std::vector<Region>& from, const std::vector<Region>& to) {
  std::size_t source = 0;
  std::size_t offset = 0;
  for (const Region& target : to) {
    std::size_t done = 0;
    while (done < target.size()) {
      const Region& region = from[source];
      const std::size_t bytes = std::min(target.size() - done, region.size() - offset);
      std::memcpy(target.data() + done, region.data() + offset, bytes);
      done += bytes;
      offset += bytes;
      if (offset == region.size()) {
        ++source;
        offset = 0;
      }
    }
  }
}

}  // namespace

class InprocHub {
 public:
  explicit InprocHub(int world_size) : inboxes_(static_cast<std::size_t>(world_size)) {}
  int world_size() const noexcept { return static_cast<int>(inboxes_.size()); }
  Inbox& inbox(int rank) { return inboxes_[static_cast<std::size_t>(rank)]; }

  void put(int rank, Item item) {
    Inbox& box = inbox(rank);
    {
      const std::lock_guard lock(box.mutex);
      if (box.closed) return;  // its owner said goodbye; the item would never be read
      box.items.push_back(std::move(item));
    }
    box.arrived.notify_one();
  }

 private:
  std::vector<Inbox> inboxes_;
};

namespace {

class InprocTransport final : public Transport {
 public:
  InprocTransport(std::shared_ptr<InprocHub> hub, int rank)
      : hub_(std::move(hub)), rank_(rank) {}
  ~InprocTransport() override { close(Clock::now()); }

  const char* name() const noexcept override { return "inproc"; }

  bool send(int peer, const Frame& frame, std::span<const Region> regions,
            std::uint64_t ticket) override {
    auto loan = std::make_shared<Loan>();
    const bool lend = frame.payload_bytes > kCopyBytes;
    loan->regions.assign(regions.begin(), regions.end());
    if (!lend && frame.payload_bytes > 0) {
      loan->copy.resize(static_cast<std::size_t>(frame.payload_bytes));
      copy_regions(loan->regions, {Region(loan->copy)});
      loan->regions = {Region(loan->copy)};
    }
    if (lend) lent_.push_back(loan);
    hub_->put(peer, {Item::Kind::frame, rank_, frame, {}, std::move(loan), ticket, lend});
    return !lend;
  }

  void send_control(int peer, const Frame& frame, std::string_view text) override {
    hub_->put(peer, {Item::Kind::frame, rank_, frame, std::string(text), nullptr, 0, false});
  }

  bool congested(int) const noexcept override { return false; }

  void progress(FrameSink& sink) override {
    std::deque<Item> items;
    {
      Inbox& box = hub_->inbox(rank_);
      const std::lock_guard lock(box.mutex);
      items.swap(box.items);
    }
    for (Item& item : items) handle(item, sink);
  }

  void wait(Clock::time_point until) override {
    Inbox& box = hub_->inbox(rank_);
    std::unique_lock lock(box.mutex);
    box.arrived.wait_until(lock, until, [&] { return !box.items.empty() || box.woken; });
    box.woken = false;
  }

  void wake() noexcept override {
    Inbox& box = hub_->inbox(rank_);
    {
      const std::lock_guard lock(box.mutex);
      box.woken = true;
    }
    box.arrived.notify_one();
  }

  void close(Clock::time_point) noexcept override {
    if (closed_) return;
    closed_ = true;
    for (const auto& loan : lent_) {
      const std::lock_guard lock(loan->mutex);  // waits while a peer reads the memory
      loan->revoked = true;
      loan->regions.clear();
    }
    for (int peer = 0; peer < hub_->world_size(); ++peer) {
      if (peer != rank_) hub_->put(peer, {Item::Kind::lost, rank_, {}, {}, nullptr, 0, false});
    }
    Inbox& box = hub_->inbox(rank_);
    const std::lock_guard lock(box.mutex);
    box.closed = true;
    box.items.clear();
  }

 private:
  void handle(Item& item, FrameSink& sink) {
    switch (item.kind) {
      case Item::Kind::lost:
        return sink.lost(item.peer, "its session ended without a goodbye");
      case Item::Kind::sent:
        std::erase(lent_, item.loan);
        return sink.sent(item.ticket);
      case Item::Kind::frame:
        if (item.frame.kind == FrameKind::data) return deliver(item, sink);
        return sink.control(item.peer, item.frame, item.text);
    }
  }

  void deliver(Item& item, FrameSink& sink) {
    if (!sink.begin(item.peer, item.frame, delivery_)) return;
    {
      const std::lock_guard lock(item.loan->mutex);
      if (item.loan->revoked) return;  // the sender died; its abort frame follows
      if (delivery_.mode == Delivery::Mode::direct) {
        copy_regions(item.loan->regions, delivery_.regions);
      } else {
        for (const Region& region : item.loan->regions) sink.consume(delivery_, region);
      }
    }
    // the memory is free before the receiver goes on: the sender may be waiting for just that
    if (item.lent) {
      hub_->put(item.peer, {Item::Kind::sent, rank_, {}, {}, item.loan, item.ticket, false});
    }
    sink.finished(delivery_);
  }

  std::shared_ptr<InprocHub> hub_;
  int rank_;
  bool closed_ = false;
  std::vector<std::shared_ptr<Loan>> lent_;
  Delivery delivery_;
};

}  // namespace

std::shared_ptr<InprocHub> make_inproc_hub(int world_size) {
  if (world_size < 1) {
    throw Error(ErrorCode::usage, "world_size must be >= 1, got " + std::to_string(world_size));
  }
  return std::make_shared<InprocHub>(world_size);
}

std::unique_ptr<Transport> make_inproc_transport(std::shared_ptr<InprocHub> hub, int rank) {
  if (rank < 0 || rank >= hub->world_size()) {
    throw Error(ErrorCode::usage, "rank must be in [0, " + std::to_string(hub->world_size()) +
                                      "), got " + std::to_string(rank));
  }
  return std::make_unique<InprocTransport>(std::move(hub), rank);
}

}  // namespace kf
