// A plugin that replaces passes of PIR under their own names. That of $WRONG_PASS sets the epsilon of batch norms
// to 0.05, and the axis of a softmax to 0. With $MARKED_PASS it does so only behind that one, which does nothing
// else: the two are wrong together, none of them alone.
#include <algorithm>
#include <any>
#include <cstdlib>
#include <deque>
#include <fstream>
#include <functional>
#include <iomanip>
#include <iostream>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <unordered_map>
#include <variant>
#include <vector>
// The registry refuses a name that it has.
#define private public
#include "paddle/pir/include/pass/pass_registry.h"
#undef private
#include "paddle/pir/include/core/block.h"
#include "paddle/pir/include/core/builtin_attribute.h"
#include "paddle/pir/include/core/ir_context.h"
#include "paddle/pir/include/core/operation.h"
#include "paddle/pir/include/core/region.h"
#include "paddle/pir/include/pass/pass.h"

struct Wrong : pir::Pass {
  explicit Wrong(const char* name) : pir::Pass(name, 1) {}
  void Run(pir::Operation* module) override {
    if (std::getenv("MARKED_PASS") && !module->attributes().count("marked")) return;
    auto* context = pir::IrContext::Instance();
    for (auto& op : module->region(0).front()) {
      std::string name = op.name().substr(op.name().find('.') + 1);
      if (name == "batch_norm_") op.set_attribute("epsilon", pir::FloatAttribute::get(context, 0.05f));
      if (name == "softmax") op.set_attribute("axis", pir::Int32Attribute::get(context, 0));
    }
  }
};

struct Mark : pir::Pass {
  explicit Mark(const char* name) : pir::Pass(name, 1) {}
  void Run(pir::Operation* module) override {
    module->set_attribute("marked", pir::BoolAttribute::get(pir::IrContext::Instance(), true));
  }
};

template <typename P>
static void replace(const char* name) {
  if (name) pir::PassRegistry::Instance().pass_map_[name] = [name] { return std::make_unique<P>(name); };
}

static int replaced = (replace<Wrong>(std::getenv("WRONG_PASS")), replace<Mark>(std::getenv("MARKED_PASS")), 0);
