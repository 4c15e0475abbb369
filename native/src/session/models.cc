// The exchange of models between two ranks: asking, answering, and the messages of the answer.
#include <algorithm>
#include <array>
#include <span>

#include "kf/error.h"
#include "session/impl.h"

namespace kf {

namespace {

constexpr std::size_t kMaxNameBytes = 1024;
constexpr std::int64_t kMaxModelBytes = std::int64_t{1} << 48;  // beyond any real model

enum Header : std::size_t { kFound, kVersion, kDescriptionBytes, kBytes, kHeaderWords };

// An answer on its way: what its two messages are sent from.
struct Reply {
  std::array<std::int64_t, kHeaderWords> header{};
  std::shared_ptr<const Model> model;
};

Piece bytes_at(const void* data, std::size_t count) {
  // messages are only read from memory that is sent
  return {const_cast<void*>(data), static_cast<std::int64_t>(count), DType::u8, ReduceOp::sum};
}

Piece piece_of(std::array<std::int64_t, kHeaderWords>& header) {
  return {header.data(), kHeaderWords, DType::i64, ReduceOp::sum};
}

void check_name(const std::string& name) {
  if (!name.empty() && name.size() <= kMaxNameBytes) return;
  throw Error(ErrorCode::usage, "the name of a model has 1 to " +
                                    std::to_string(kMaxNameBytes) + " bytes, got " +
                                    std::to_string(name.size()));
}

}  // namespace

void Session::Impl::save(const std::string& name, std::shared_ptr<const Model> model,
                         int keep) {
  require_same_process();
  check_name(name);
  if (keep < 1) {
    throw Error(ErrorCode::usage, "keep must be >= 1, got " + std::to_string(keep));
  }
  Lock lock(mutex_);
  throw_if_dead(lock);
  store_.put(name, std::move(model), keep);
  std::erase_if(asked_, [&](const Asked& asked) {
    return asked.name == name && answer(asked.peer, name, asked.version);
  });
  throw_if_dead(lock);
  serving_ = true;
  if (view_.world_size() > 1) wake_thread(lock);
}

// True when there is an answer, also "not any more"; false when the model may still come.
bool Session::Impl::answer(int peer, const std::string& name, std::int64_t version) {
  auto reply = std::make_shared<Reply>();
  reply->model = store_.find(name, version);
  if (reply->model == nullptr && store_.may_come(name, version)) return false;
  std::vector<Piece> body;
  if (const Model* model = reply->model.get()) {
    reply->header = {1, model->version, static_cast<std::int64_t>(model->description.size()),
                     static_cast<std::int64_t>(model->byte_count)};
    body = {bytes_at(model->description.data(), model->description.size()),
            bytes_at(model->bytes.get(), model->byte_count)};
  }
  post_model(peer, true, {piece_of(reply->header)}, reply);
  if (!body.empty()) post_model(peer, true, std::move(body), reply);
  return true;
}

// One message of an answer; both sides start them in the same order.
Session::Handle Session::Impl::post_model(int peer, bool send, std::vector<Piece> pieces,
                                          std::shared_ptr<const void> memory) {
  Call call;
  call.pieces = std::move(pieces);
  OperationSpec spec = message_spec(peer, send, kModelTag, call);
  spec.memory = std::move(memory);
  return begin(std::move(call), std::move(spec), false);
}

void Session::Impl::on_request(int peer, const Frame& frame, std::string_view name) {
  const auto version = static_cast<std::int64_t>(frame.key.sequence);
  const std::string text(name);
  if (answer(peer, text, version)) return;
  const auto same = [peer](const Asked& asked) { return asked.peer == peer; };
  if (std::any_of(asked_.begin(), asked_.end(), same)) {
    throw Error(
        ErrorCode::transport,
        "rank " + std::to_string(peer) + " broke the protocol: it asks for two models at once");
  }
  asked_.push_back({peer, text, version});
}

std::shared_ptr<const Model> Session::Impl::request(int peer, const std::string& name,
                                                    std::int64_t version,
                                                    Clock::time_point deadline,
                                                    const Interrupt& interrupt) {
  require_same_process();
  check_name(name);
  if (peer < 0 || peer >= view_.world_size() || version < Model::kNewest) {
    throw Error(ErrorCode::usage, "peer must be in [0, " + std::to_string(view_.world_size()) +
                                      ") and version >= 0, got " + std::to_string(peer) +
                                      " and " + std::to_string(version));
  }
  Lock lock(mutex_);
  throw_if_dead(lock);
  if (peer == rank_) return store_.find(name, version);
  while (asking_.contains(peer)) {  // another thread of this rank
    progressed_.wait_until(lock, deadline);
    throw_if_dead(lock);
    if (Clock::now() >= deadline) {
      throw Error(ErrorCode::usage, "another request to rank " + std::to_string(peer) +
                                        " takes longer than this one may");
    }
  }
  asking_.insert(peer);
  std::shared_ptr<Model> model;
  try {
    std::array<std::int64_t, kHeaderWords> header{};
    const Handle first = post_model(peer, false, {piece_of(header)}, nullptr);
    executor_.request(peer, name, version);
    lock.unlock();
    wait(first, deadline, interrupt);
    const bool found = header[kFound] != 0;
    if (found) {
      if (header[kDescriptionBytes] < 0 || header[kBytes] < 0 ||
          header[kDescriptionBytes] > kMaxModelBytes || header[kBytes] > kMaxModelBytes) {
        throw Error(ErrorCode::transport, "rank " + std::to_string(peer) +
                                              " broke the protocol: a model of negative size");
      }
      model = std::make_shared<Model>(
          header[kVersion],
          std::string(static_cast<std::size_t>(header[kDescriptionBytes]), '\0'),
          static_cast<std::size_t>(header[kBytes]));
      lock.lock();
      const Handle second =
          post_model(peer, false,
                     {bytes_at(model->description.data(), model->description.size()),
                      bytes_at(model->bytes.get(), model->byte_count)},
                     model);
      lock.unlock();
      wait(second, deadline, interrupt);
    }
    lock.lock();
  } catch (...) {
    if (!lock.owns_lock()) lock.lock();
    asking_.erase(peer);
    throw;
  }
  asking_.erase(peer);
  progressed_.notify_all();
  return model;
}

}  // namespace kf
