import sys, training, turns
def make(data, ml, batch, steps, kind):
    more={}
    recipe=training.recipe_of(data,ml)
    if kind=="compile": more=dict(torch_compile=True)
    if kind=="tokens": tr=training._ours(recipe,batch*steps,max_tokens_per_batch=int(batch*ml*FACT[data]),num_train_epochs=1)
    elif kind=="rows": tr=training._ours(recipe,batch*steps,global_batch_size=batch,num_train_epochs=1)
    elif kind=="random": tr=training._ours(recipe,batch*steps,global_batch_size=batch,num_train_epochs=1,train_sampling_strategy="random")
    else: tr=training._ours(recipe,batch*steps,global_batch_size=batch,num_train_epochs=1,**more)
    def turn():
        tr.train(); s=tr.speed(); return (tr.state.global_step, s["padding"], s["tokens_per_second"])
    return turn
FACT={training.LONG[0]:0.72, training.SHORT[0]:0.45}
if __name__=="__main__":
    for (data,ml),steps,kinds in ((training.LONG,8,("rows","tokens")),(training.SHORT,40,("rows","tokens","compile"))):
        w=turns.take({k:(make,(data,ml,32,steps,k)) for k in kinds},3,warm_up=1)
        for k,x in w.items(): print(data,k,round(32*steps/x.seconds,1),round(w["rows"].seconds/x.seconds,3),x.answers[-1],round(x.memory),flush=True)
