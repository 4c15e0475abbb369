#include "session/model_store.h"

#include <algorithm>
#include <cstring>

#include "kf/error.h"

namespace kf {

Model::Model(std::int64_t number, std::string text, std::size_t size)
    : version(number),
      description(std::move(text)),
      bytes(std::make_unique_for_overwrite<std::byte[]>(size)),
      byte_count(size) {}

std::shared_ptr<const Model> copy_model(std::int64_t version, std::string description,
                                        const std::vector<Piece>& pieces) {
  if (version < 0) {
    throw Error(ErrorCode::usage, "version must be >= 0, got " + std::to_string(version));
  }
  std::size_t size = 0;
  const auto place = [&size](const Piece& piece) {
    const std::size_t at = (size + Model::kAlign - 1) / Model::kAlign * Model::kAlign;
    size = at + static_cast<std::size_t>(piece.count * element_bytes(piece.dtype));
    return at;
  };
  for (const Piece& piece : pieces) place(piece);
  auto model = std::make_shared<Model>(version, std::move(description), size);
  size = 0;
  for (const Piece& piece : pieces) {
    const std::size_t at = place(piece);
    if (size > at) std::memcpy(model->bytes.get() + at, piece.data, size - at);
  }
  return model;
}

void ModelStore::put(const std::string& name, std::shared_ptr<const Model> model, int keep) {
  auto& versions = models_[name];
  if (!versions.empty() && model->version <= versions.back()->version) {
    throw Error(ErrorCode::usage, "versions of \"" + name + "\" must grow: got " +
                                      std::to_string(model->version) + " after " +
                                      std::to_string(versions.back()->version));
  }
  versions.push_back(std::move(model));
  while (versions.size() > static_cast<std::size_t>(std::max(keep, 1))) versions.pop_front();
}

std::shared_ptr<const Model> ModelStore::find(const std::string& name,
                                              std::int64_t version) const {
  const auto found = models_.find(name);
  if (found == models_.end()) return nullptr;
  if (version == Model::kNewest) return found->second.back();
  for (const auto& model : found->second) {
    if (model->version == version) return model;
  }
  return nullptr;
}

bool ModelStore::may_come(const std::string& name, std::int64_t version) const {
  const auto found = models_.find(name);
  return found == models_.end() || version > found->second.back()->version;
}

}  // namespace kf
