package fleet

import (
	"time"

	"gpuledger/billing/period"
)

// labels of a workload: what it is part of, and the model it serves or trains.
func labels(app, partOf, model string) map[string]string {
	l := map[string]string{"app.kubernetes.io/name": app, "app.kubernetes.io/part-of": partOf}
	if model != "" {
		l["model"] = model
	}
	return l
}

func (b *builder) addPods() {
	b.addTraining()
	b.addShared()
	b.addCopied()
	b.addMIG()
	b.addBatch()
	b.deployment("platform", "gateway", "a", Pod{
		Node: nodeCPU, CPUMilli: 1000, MemoryMiB: 2048, Life: b.always(), Labels: labels("gateway", "platform", ""),
	})
}

// addTraining fills the p5: GPUs 0 to 3 by two long runs of research, 4 and 5 by
// the embeddings and for half an hour by ranking, 6 for two days by a notebook of
// nobody, then 6 and 7 by ranking. The first day and the last two are idle.
func (b *builder) addTraining() {
	train := func(namespace, name, partOf, model string, life period.Span, mib int64, on ...int) {
		b.job(namespace, name, Pod{
			Node: nodeTraining, Resource: "nvidia_com_gpu", Units: int64(len(on)), CPUMilli: int64(20000 * len(on)), MemoryMiB: int64(len(on)) * 200 << 10,
			Life: life, Places: gpus(on...), Memory: rising(life, mib), Labels: labels(name, partOf, model),
		})
	}
	train("research-llm", "atlas-pretrain", "research", "atlas-7b", b.span(4, 9, 20, 12, 15, 40), 71680, 0, 1, 2, 3)
	train("research-llm", "atlas-finetune", "research", "atlas-7b", b.span(16, 8, 0, 22, 20, 0), 66560, 0, 1, 2, 3)
	train("ranking", "ranker-eval", "ranking", "ranker-v4", b.span(5, 10, 20, 5, 10, 50), 40960, 4, 5)
	train("embeddings", "encoder-train", "search", "encoder-v2", b.span(8, 0, 0, 15, 12, 10), 57344, 4, 5)
	train("embeddings", "encoder-distill", "search", "encoder-v3", b.span(16, 6, 0, 22, 6, 0), 49152, 4, 5)
	train("ranking", "ranker-train", "ranking", "ranker-v4", b.span(12, 18, 30, 21, 18, 0), 61440, 6, 7)
	life := b.span(9, 9, 0, 11, 18, 0)
	b.statefulSet("sandbox", "notebook-ana", Pod{
		Node: nodeTraining, Resource: "nvidia_com_gpu", Units: 1, CPUMilli: 8000, MemoryMiB: 64 << 10,
		Life: life, Places: gpus(6), Memory: flat(life, 9216), Labels: labels("notebook", "sandbox", ""),
	})
}

// addShared fills the L4's slots: three services all month, of which the ranker is
// rolled over on day 15 at 02:00, and a second encoder from day 10 to day 14, while
// which all four slots are held.
func (b *builder) addShared() {
	serve := func(namespace, name, generation, partOf, model string, n int, life period.Span, mib ...int64) {
		b.deployment(namespace, name, generation, Pod{
			Node: nodeShared, Resource: "nvidia_com_gpu", Units: 1, CPUMilli: 700, MemoryMiB: 2560, Life: life,
			Places: slot(n), Memory: b.daily(life, mib...), Labels: labels(name, partOf, model),
		})
	}
	serve("search", "query-encoder", "a1", "search", "encoder-v2", 0, b.always(), 4608, 5632, 6656, 5632)
	serve("ranking", "ranker", "a", "ranking", "ranker-v3", 1, b.until(15, 2, 0), 2816, 2816, 3840, 3328)
	serve("ranking", "ranker", "b", "ranking", "ranker-v4", 1, b.from(15, 2, 0), 3072, 3072, 4096, 3584)
	serve("embeddings", "embedder", "a", "search", "encoder-v2", 2, b.always(), 3072, 2048, 2048, 3072)
	serve("search", "query-encoder", "a2", "search", "encoder-v2", 3, b.span(10, 8, 0, 14, 8, 0), 4096, 4096, 4096, 4096)
}

// addCopied puts three services on the T4. By day they use nine tenths of it, by
// night seven; its exporter shows that sum for each of them.
func (b *builder) addCopied() {
	life := b.always()
	serve := func(namespace, name, partOf, model string, n int, mib ...int64) {
		b.deployment(namespace, name, "a", Pod{
			Node: nodeCopied, Resource: "nvidia_com_gpu", Units: 1, CPUMilli: 900, MemoryMiB: 3072, Life: life,
			Places: slot(n), Memory: b.daily(life, mib...), Labels: labels(name, partOf, model),
		})
	}
	serve("search", "suggest", "search", "suggest-v1", 0, 5120, 6144, 6144, 6144)
	serve("ranking", "ctr-scorer", "ranking", "ctr-v9", 1, 3288, 4320, 4320, 4320)
	serve("platform", "guardrails", "platform", "guard-v2", 2, 2064, 3000, 3000, 3000)
}

// addMIG holds few of the p4d's instances.
func (b *builder) addMIG() {
	hold := func(namespace, name, partOf, model, profile string, mib int64, life period.Span, place []Place) {
		b.statefulSet(namespace, name, Pod{
			Node: nodeMIG, Resource: "nvidia_com_mig_" + sanitised(profile), Units: 1, CPUMilli: 2000, MemoryMiB: 8192, Life: life,
			Places: place, Memory: flat(life, mib), Labels: labels(name, partOf, model),
		})
	}
	node := b.span(8, 12, 10, 16, 12, 0)
	hold("search", "intent-classifier", "search", "intent-v1", "3g.20gb", 14336, node, instance(0, "2"))
	hold("ranking", "title-gen", "ranking", "title-v2", "2g.10gb", 7680, node, instance(0, "3"))
	hold("platform", "canary", "platform", "guard-v2", "1g.5gb", 2048, node, instance(0, "9"))
	hold("sandbox", "notebook-bo", "sandbox", "", "1g.5gb", 1024, b.span(9, 8, 0, 12, 18, 0), instance(1, "7"))
	hold("sandbox", "notebook-cy", "sandbox", "", "1g.5gb", 3072, b.span(10, 8, 0, 12, 18, 0), instance(1, "8"))
	hold("research-llm", "distill", "research", "atlas-1b", "7g.40gb", 30720, b.span(10, 9, 20, 14, 21, 40), instance(2, "0"))
}

// addBatch runs the nightly embedding on the g5, idle for the rest of the day and
// all of days 23 to 25, and a rollout of research on the Spot node.
func (b *builder) addBatch() {
	for d := 1; ; d++ {
		life := b.span(d, 1, 0, d, 5, 30)
		if !life.Start.Before(b.Month.Span().End) {
			break
		}
		if d >= 23 && d <= 25 {
			continue
		}
		life.End = life.End.Add(time.Duration(between("batch/"+life.Start.Format(time.DateOnly), 0, 11)) * 5 * time.Minute)
		b.cronJob("embeddings", "batch-embed", Pod{
			Node: nodePlan, Resource: "nvidia_com_gpu", Units: 1, CPUMilli: 3000, MemoryMiB: 12 << 10, Life: life,
			Places: gpus(0), Memory: rising(life, 18432), Labels: labels("batch-embed", "search", "encoder-v2"),
		})
	}
	life := b.span(20, 13, 50, 22, 17, 20)
	b.statefulSet("research-llm", "rollout", Pod{
		Node: nodeSpot, Resource: "nvidia_com_gpu", Units: 1, CPUMilli: 3000, MemoryMiB: 24 << 10, Life: life,
		Places: gpus(0), Memory: rising(life, 36864), Labels: labels("rollout", "research", "atlas-7b"),
	})
}
